"""Where activation buffers lie: offsets in one arena, from exact lifetimes.

A buffer is live from the first step that writes it to the last that reads or writes it before it is
written anew from scratch; with the names reused layer after layer that is the range between its
first and last use, split where a write does not read what was there. Buffers whose live ranges meet
never overlap. Placement is greedy, the biggest first, each at the lowest offset that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.program.ops import Buffer, Per

ALIGNMENT = 64
Uses = tuple[tuple[str, ...], tuple[str, ...]]  # what a step reads, what it writes


@dataclass(frozen=True)
class ArenaLayout:
    """offsets: bytes from the arena's start, by buffer; total_bytes: the arena's size."""

    offsets: dict[str, int]
    sizes: dict[str, int]
    total_bytes: int


def live_ranges(steps: Sequence[Uses]) -> dict[str, list[tuple[int, int]]]:
    """Step ranges [first, last] in which each buffer holds something that is still needed."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for index, (reads, writes) in enumerate(steps):
        for name in dict.fromkeys((*reads, *writes)):
            spans = ranges.setdefault(name, [])
            begins = name in writes and name not in reads
            if not spans or begins:
                spans.append((index, index))
            else:
                spans[-1] = (spans[-1][0], index)
    return ranges


def layout_arena(
    buffers: Sequence[Buffer], steps: Sequence[Uses], tile: int, sample_rows: int
) -> ArenaLayout:
    """Lay the buffers out for `tile` tokens and `sample_rows` sampling rows."""
    rows = {Per.TOKEN: tile, Per.ROW: sample_rows}
    sizes = {b.name: _aligned(4 * b.width * rows[b.per]) for b in buffers}
    ranges = live_ranges(steps)
    placed: dict[str, tuple[int, int]] = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        meets = [
            place
            for other, place in placed.items()
            if _meet(ranges.get(name, []), ranges.get(other, []))
        ]
        start = 0
        for low, high in sorted(meets):
            if start + sizes[name] <= low:
                break
            start = max(start, high)
        placed[name] = (start, start + sizes[name])
    total = max((high for _, high in placed.values()), default=0)
    return ArenaLayout({name: low for name, (low, _) in placed.items()}, sizes, total)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _meet(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    return any(x0 <= y1 and y0 <= x1 for x0, x1 in a for y0, y1 in b)
