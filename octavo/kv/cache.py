"""Block tables: which blocks hold a request's keys and values, per group of layers.

A table's index is a position divided by the block size. A full group keeps its blocks from 0; a
window group returns those that no token to come can see:

    computed c, window w:  a token at p ≥ c sees keys [p − w + 1, p], so none before c − w + 1

    index    0     1     2     3     4     5
           └─────────┘ returned  └───── held ─────┘
                       ▲ the block of position c − w + 1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.config.resolve import blocks_for
from octavo.kv.pool import BlockPool
from octavo.program.program import KvLayout

Appended = tuple[int, int, int]  # group, index in the table, block


@dataclass(slots=True)
class BlockTable:
    """One request's blocks. Per group: the blocks held, and the index of the first of them."""

    blocks: list[list[int]]
    first: list[int]
    capacity: int = 0  # tokens that the blocks reach to

    def held(self) -> Iterable[int]:
        for blocks in self.blocks:
            yield from blocks


@dataclass
class KvCache:
    """The pool and the rules for what a request holds of it.

    chunk: most tokens that one step computes of one request.
    """

    layout: KvLayout
    num_blocks: int
    chunk: int
    pool: BlockPool = field(init=False)
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks)
        self.longest = self._longest_that_fits()

    @property
    def num_used(self) -> int:
        return self.pool.num_used

    @property
    def peak_used(self) -> int:
        return self.pool.peak_used

    def new_table(self) -> BlockTable:
        groups = len(self.layout.groups)
        return BlockTable([[] for _ in range(groups)], [0] * groups)

    def most_blocks(self, num_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` tokens holds at once."""
        return blocks_for(self.layout, num_tokens, self.chunk)

    def growth(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that `append` would take."""
        if num_tokens <= table.capacity:
            return 0
        size = self.layout.block_size
        return (-(-num_tokens // size) - table.capacity // size) * len(self.layout.groups)

    def append(self, table: BlockTable, num_tokens: int) -> list[Appended] | None:
        """Let the table reach `num_tokens`, in every group or not at all (None: short)."""
        if num_tokens <= table.capacity:
            return []
        size = self.layout.block_size
        begin, end = table.capacity // size, -(-num_tokens // size)
        taken = self.pool.allocate((end - begin) * len(self.layout.groups))
        if taken is None:
            return None
        table.capacity = end * size
        appended: list[Appended] = []
        fresh = iter(taken)
        for group, blocks in enumerate(table.blocks):
            for index in range(begin, end):
                block = next(fresh)
                blocks.append(block)
                appended.append((group, index, block))
        return appended

    def drop_unseen(self, table: BlockTable, num_computed: int) -> None:
        """Return a window group's blocks that no token from `num_computed` on can see."""
        size = self.layout.block_size
        for group, members in enumerate(self.layout.groups):
            if members.window is None:
                continue
            first_seen = max(0, num_computed - members.window + 1) // size
            count = min(first_seen - table.first[group], len(table.blocks[group]))
            if count > 0:
                self.pool.release(table.blocks[group][:count])
                del table.blocks[group][:count]
                table.first[group] += count

    def release(self, table: BlockTable) -> None:
        """Return everything; the table is empty afterwards."""
        for blocks in table.blocks:
            self.pool.release(blocks)
            blocks.clear()
        table.first = [0] * len(table.first)
        table.capacity = 0

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Prove the pool's invariants and that each table reaches exactly its capacity."""
        every = list(tables)
        self.pool.check([block for table in every for block in table.held()])
        size = self.layout.block_size
        for table in every:
            for blocks, first in zip(table.blocks, table.first, strict=True):
                assert (first + len(blocks)) * size == table.capacity, "table and capacity"

    def _longest_that_fits(self) -> int:
        low, high = 0, self.num_blocks * self.layout.block_size
        while low < high:
            middle = (low + high + 1) // 2
            if self.most_blocks(middle) <= self.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low
