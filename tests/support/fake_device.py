"""An honest device without a model: executes plans in order and checks what it would have read.

Each computed token writes the tag (owner, group, position) into its slot of a fake KV array, and
reads the tags of every position it attends to: a block that lost what was written for its request
shows up as a foreign tag. Steps run in order, so tags alone would never miss the fence; `run`
therefore also fails if a step touches a block that a plan launched after it has given to somebody:

    launch 1   launch 2 (appends block 7)   run 1: touches block 7?  ✗ given away too early

A drawn token is a function of the history alone, so streams can be compared.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from octavo.base.step import NOT_SAMPLED, Finish, StepPlan, StepResult, StepTimings
from octavo.program.program import KvLayout


@dataclass
class _Row:
    owner: int  # counts joins, so that a row's next request has other tags
    tokens: list[int]
    max_len: int
    num_computed: int = 0
    ended: bool = False
    tables: list[dict[int, int]] = field(default_factory=list)


class FakeDevice:
    """stop_every: a drawn token divisible by it ends its row."""

    def __init__(self, layout: KvLayout, num_blocks: int, stop_every: int = 11) -> None:
        self._layout = layout
        self._stop_every = stop_every
        self._tags = np.full((num_blocks, layout.block_size, 3), -1)
        self._rows: dict[int, _Row] = {}
        self._joins = 0
        self._given = np.zeros(num_blocks, np.int64)  # the last launched plan that appended it
        self._launched: deque[StepPlan] = deque()
        self.num_computed = 0  # tokens, all rows together

    @property
    def in_flight(self) -> int:
        return len(self._launched)

    def launch(self, plan: StepPlan) -> None:
        """Take a plan; it runs when its turn comes."""
        assert self._launched == deque() or plan.seq == self._launched[-1].seq + 1
        given = plan.blocks[:, 3]
        assert len(set(given.tolist())) == len(given), "a block was given twice in one plan"
        self._given[given] = plan.seq
        self._launched.append(plan)

    def run(self) -> StepResult:
        """Run the oldest launched plan, as late as it may run: just before its result is known."""
        plan = self._launched.popleft()
        self._begin(plan)
        return self._step(plan)

    def _begin(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            del self._rows[row]
        for join in plan.joins:
            assert join.row not in self._rows, "a row was joined that nobody left"
            self._joins += 1
            groups = len(self._layout.groups)
            self._rows[join.row] = _Row(
                self._joins, join.tokens.tolist(), join.max_len, tables=[{} for _ in range(groups)]
            )
        for row, group, index, block in plan.blocks.tolist():
            self._rows[row].tables[group][index] = block

    def _step(self, plan: StepPlan) -> StepResult:
        size = len(plan.rows)
        tokens = np.full(size, NOT_SAMPLED, np.int32)
        finish = np.zeros(size, np.int8)
        computed = np.zeros(size, np.int32)
        for i, (index, count, sample) in enumerate(
            zip(plan.rows.tolist(), plan.counts.tolist(), plan.samples.tolist(), strict=True)
        ):
            row = self._rows[index]
            self._compute(row, min(count, len(row.tokens) - row.num_computed), plan.seq)
            computed[i] = row.num_computed
            if sample and not row.ended and row.num_computed == len(row.tokens):
                tokens[i], finish[i] = self._draw(row)
        timings = StepTimings(0.0, 0.0, 0.0, 0.0)
        return StepResult(plan.seq, plan.rows, tokens, computed, finish, timings)

    def _draw(self, row: _Row) -> tuple[int, Finish]:
        token = next_token(row.tokens)
        row.tokens.append(token)
        if token % self._stop_every == 0:
            row.ended = True
            return token, Finish.STOP_TOKEN
        if len(row.tokens) >= row.max_len:
            row.ended = True
            return token, Finish.LENGTH
        return token, Finish.RUNNING

    def _compute(self, row: _Row, count: int, seq: int) -> None:
        if row.ended:
            return
        size = self._layout.block_size
        for position in range(row.num_computed, row.num_computed + count):
            for group, table in enumerate(row.tables):
                block = table[position // size]
                self._tags[block, position % size] = (row.owner, group, position)
                window = self._layout.groups[group].window
                first = 0 if window is None else max(0, position - window + 1)
                for seen in range(first, position + 1):
                    block = table[seen // size]
                    tag = self._tags[block, seen % size]
                    assert tuple(tag) == (row.owner, group, seen), f"foreign KV at position {seen}"
                    assert self._given[block] <= seq, f"block {block} was given away too early"
        row.num_computed += count
        self.num_computed += count


def next_token(history: list[int]) -> int:
    digest = hashlib.blake2b(repr(history).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 997
