"""Block tables: which blocks hold a request's keys and values, per group of layers.

A table's index is a position divided by the block size. A full group keeps its blocks from 0; a
window group returns those that no token to come can see:

    computed c, window w:  a token at p ≥ c sees keys [p − w + 1, p], so none before c − w + 1

    index    0     1     2     3     4     5
           └─ returned ┘└──────── held ─────────┘
                        ▲ the block of position c − w + 1

c is what *retired* steps have computed. A step that is launched or planned ahead writes beyond it,
so a window group may for a while hold a chunk more than `most_blocks` says; what it holds too much
comes back as the steps in flight retire (`unseen`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.config.resolve import blocks_for
from octavo.kv.pool import BlockPool
from octavo.program.program import KvLayout

Appended = tuple[int, int, int]  # group, index in the table, block

# Most tokens anything here counts to: positions cross the step contract as int32.
_MOST_TOKENS = 2**31 - 1


@dataclass(slots=True)
class BlockTable:
    """One request's blocks. Per group: the blocks held, and the index of the first of them."""

    blocks: list[list[int]]
    first: list[int]
    capacity: int = 0  # tokens that the blocks reach to
    next_drop: int = 0  # with fewer computed tokens than this no window group returns a block

    def held(self) -> Iterable[int]:
        for blocks in self.blocks:
            yield from blocks


@dataclass
class KvCache:
    """The pool and the rules for what a request holds of it.

    chunk: most tokens that one step computes of one request.
    longest: most tokens whose KV one request can have in this pool, alone in it.
    """

    layout: KvLayout
    num_blocks: int
    chunk: int
    pool: BlockPool = field(init=False)
    longest: int = field(init=False)
    _windows: tuple[tuple[int, int], ...] = field(init=False, repr=False)  # (group, window)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks)
        self._windows = tuple(
            (group, members.window)
            for group, members in enumerate(self.layout.groups)
            if members.window is not None
        )
        self.longest = self._longest_that_fits()

    @property
    def num_used(self) -> int:
        return self.pool.num_used

    @property
    def peak_used(self) -> int:
        return self.pool.peak_used

    def new_table(self) -> BlockTable:
        groups = len(self.layout.groups)
        table = BlockTable([[] for _ in range(groups)], [0] * groups)
        table.next_drop = self._next_drop(table)
        return table

    def most_blocks(self, num_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` tokens holds at once."""
        return blocks_for(self.layout, num_tokens, self.chunk)

    def still_needed(self, table: BlockTable, num_computed: int, num_tokens: int) -> int:
        """Most blocks that the table will take beyond those it holds until `num_tokens`."""
        chunk = min(self.chunk, max(1, num_tokens - num_computed))
        held = sum(map(len, table.blocks))
        return max(0, blocks_for(self.layout, num_tokens, chunk) - held)

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

    def unseen(self, table: BlockTable, num_computed: int) -> int:
        """Blocks that `drop_unseen` would return."""
        if num_computed < table.next_drop:
            return 0
        return sum(self._unseen_of(table, *group, num_computed) for group in self._windows)

    def drop_unseen(self, table: BlockTable, num_computed: int) -> None:
        """Return the window groups' blocks that no token from `num_computed` on can see.

        num_computed: of steps that have retired.
        """
        if num_computed < table.next_drop:
            return
        for group, window in self._windows:
            count = self._unseen_of(table, group, window, num_computed)
            if count > 0:
                self.pool.release(table.blocks[group][:count])
                del table.blocks[group][:count]
                table.first[group] += count
        table.next_drop = self._next_drop(table)

    def release(self, table: BlockTable) -> None:
        """Return everything; the table is empty afterwards."""
        for blocks in table.blocks:
            self.pool.release(blocks)
            blocks.clear()
        table.first = [0] * len(table.first)
        table.capacity = 0
        table.next_drop = self._next_drop(table)

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Prove the pool's invariants and that each table reaches exactly its capacity."""
        every = list(tables)
        self.pool.check([block for table in every for block in table.held()])
        size = self.layout.block_size
        for table in every:
            for blocks, first in zip(table.blocks, table.first, strict=True):
                assert (first + len(blocks)) * size == table.capacity, "table and capacity"
            assert table.next_drop == self._next_drop(table), "when the next block is dropped"
            for group, members in enumerate(self.layout.groups):
                assert members.window is not None or table.first[group] == 0, "full group"

    def _unseen_of(self, table: BlockTable, group: int, window: int, num_computed: int) -> int:
        first_seen = max(0, num_computed - window + 1) // self.layout.block_size
        return max(0, min(first_seen - table.first[group], len(table.blocks[group])))

    def _next_drop(self, table: BlockTable) -> int:
        """Computed tokens from which the first block of some window group is unseen.

        Block f ends before (f + 1) · size, so it is unseen once c − w + 1 ≥ (f + 1) · size.
        """
        size = self.layout.block_size
        return min(
            ((table.first[group] + 1) * size + window - 1 for group, window in self._windows),
            default=_MOST_TOKENS,
        )

    def _longest_that_fits(self) -> int:
        # Without a full group nothing grows with the length: the bound is not the pool's size.
        low, high = 0, _MOST_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if self.most_blocks(middle) <= self.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low
