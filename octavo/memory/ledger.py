"""Who owns which bytes: planned before anything is taken, measured after.

owner      what it is
weights    tensors in their packed form
arena      activation buffers of a tile
kv_pool    KV blocks (pages are touched as blocks are first used)
rows       request state: tokens, lengths, block tables, hidden states
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.base.errors import ConfigError

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """planned, measured: bytes; measured is None until the owner has taken its memory."""

    owner: str
    planned: int
    measured: int | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All owners, and how many bytes were free when the plan was made."""

    entries: tuple[Entry, ...]
    available: int

    @property
    def planned(self) -> int:
        return sum(entry.planned for entry in self.entries)

    def with_measured(self, measured: Mapping[str, int]) -> Ledger:
        """The ledger after loading: each owner's own account, and owners the plan did not name."""
        known = {entry.owner for entry in self.entries}
        entries = [Entry(e.owner, e.planned, measured.get(e.owner)) for e in self.entries]
        entries += [Entry(name, 0, size) for name, size in measured.items() if name not in known]
        return Ledger(tuple(entries), self.available)

    def table(self) -> str:
        """One line per owner, in MiB."""
        lines = []
        for entry in self.entries:
            line = f"  {entry.owner:<10} {entry.planned / _MIB:10.1f} MiB"
            if entry.measured is not None:
                line += f"  measured {entry.measured / _MIB:10.1f} MiB"
            lines.append(line)
        lines.append(f"  {'total':<10} {self.planned / _MIB:10.1f} MiB")
        lines.append(f"  {'available':<10} {self.available / _MIB:10.1f} MiB")
        return "\n".join(lines)


def plan_memory(
    planned: Mapping[str, int], *, available: int, block_bytes: int, least_blocks: int
) -> Ledger:
    """The ledger of a configuration; refuses one that can't fit, before weights are read.

    planned: bytes by owner, with "kv_pool" among them. available: bytes that are free now.
    block_bytes, least_blocks: size of a KV block, and how many one request of full length needs.
    Raises ConfigError with the ledger and the cheapest remedy.
    """
    ledger = Ledger(tuple(Entry(owner, size) for owner, size in planned.items()), available)
    missing = ledger.planned - available
    if missing <= 0:
        return ledger
    pool = planned.get("kv_pool", 0)
    smaller = (pool - missing) // block_bytes * block_bytes
    if smaller >= least_blocks * block_bytes:
        remedy = f"--kv-cache-memory-bytes {smaller} fits"
    elif smaller >= block_bytes:
        remedy = (
            f"a lower --max-model-len with --kv-cache-memory-bytes {smaller} fits "
            f"({smaller // block_bytes} blocks)"
        )
    else:
        remedy = f"free {-(-missing // _MIB)} MiB, or take a smaller or more quantised model"
    raise ConfigError(
        f"the configuration needs {ledger.planned} bytes and {available} are free\n"
        f"{ledger.table()}\n",
        remedy=remedy,
    )


def process_memory() -> dict[str, int]:
    """Bytes of this process as the kernel counts them: "rss", "pss", "private"; {} if unknown.

    pss splits pages that several processes share evenly among them.
    """
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return {}
    sizes: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            sizes[name] = int(number[0]) * 1024
    return {
        "rss": sizes.get("Rss", 0),
        "pss": sizes.get("Pss", 0),
        "private": sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0),
    }
