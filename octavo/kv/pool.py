"""The block pool: ids, reference counts, and the fence that keeps a step's blocks from reuse.

Every block is in exactly one of three states:

    free   ──allocate──►  used (references ≥ 1)  ──last release──►  fenced until a step retires
      ▲                                                                       │
      └───────────────────────────── retire(seq) ─────────────────────────────┘

A released block is fenced under the newest launched step: that step may still read or write it, so
it is handed out again only when the step has retired.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence


class BlockPool:
    """`num_blocks` blocks with ids from 0. Nothing here knows what a block holds."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.peak_used = 0
        # Last in, first out: memory that was touched is used again before fresh pages are.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._fenced: deque[tuple[int, int]] = deque()  # (step, block), steps ascending
        self._launched = 0
        self._retired = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_fenced(self) -> int:
        return len(self._fenced)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._fenced)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing taken) if short."""
        if count > len(self._free):
            return None
        cut = len(self._free) - count
        blocks = self._free[cut:]
        del self._free[cut:]
        blocks.reverse()
        for block in blocks:
            self._references[block] = 1
        self.peak_used = max(self.peak_used, self.num_used)
        return blocks

    def share(self, block: int) -> None:
        """One more reference to a used block."""
        assert self._references[block] > 0, "only a used block can be shared"
        self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less; a block without references is fenced, or free if no step runs."""
        running = self._retired < self._launched
        for block in blocks:
            assert self._references[block] > 0, "a block is released once per reference"
            self._references[block] -= 1
            if self._references[block] == 0:
                if running:
                    self._fenced.append((self._launched, block))
                else:
                    self._free.append(block)

    def launch(self, seq: int) -> None:
        """A step was launched; blocks released from now on wait for it."""
        self._launched = seq

    def retire(self, seq: int) -> None:
        """A step (and all before it) has ended: what waited for it is free."""
        self._retired = max(self._retired, seq)
        while self._fenced and self._fenced[0][0] <= seq:
            self._free.append(self._fenced.popleft()[1])

    def check(self, held: Sequence[int]) -> None:
        """Prove the invariants. held: every block of every table, once per reference."""
        references = Counter(held)
        fenced = [block for _, block in self._fenced]
        idle = Counter(self._free) + Counter(fenced)
        for block in range(self.num_blocks):
            assert self._references[block] == references[block], f"references of block {block}"
            states = idle[block] + (references[block] > 0)
            assert states == 1, f"block {block} is in {states} states"
        assert all(self._retired < step <= self._launched for step, _ in self._fenced), "fence"
