"""Runs step plans: rows and lengths in, backend calls, tokens out. Knows rows, not requests.

A step computes, for each planned row, tokens [num_computed, num_computed + count): count is the
plan's bound cut to what the row really has, and 0 for a row that ended in the step before. Rows
whose last token was computed draw their next token in the same step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import Backend, SampleBatch, SampleOutput
from octavo.base.step import (
    NOT_SAMPLED,
    Finish,
    Int32,
    RowJoin,
    StepPlan,
    StepResult,
    StepTimings,
    TokenLogprobs,
)
from octavo.runner.batches import Span, forward_batches
from octavo.runner.rows import Rows, TokenTable
from octavo.sampling import compile_row

log = logging.getLogger(__name__)

NO_TOKEN = "its logits are not finite, or every token is masked"


@dataclass(slots=True)
class _Step:
    """A step in the making; arrays and keys are by plan index."""

    tokens: Int32
    finish: NDArray[np.int8]
    stop_reasons: dict[int, int | str]
    logprobs: dict[int, TokenLogprobs]
    faults: dict[int, str]

    def fault(self, index: int, cause: str) -> None:
        self.finish[index] = Finish.FAULT
        self.faults[index] = cause


class Runner:
    """The rows and the backend that computes them. One thread at a time calls `run`.

    tile: tokens per forward call, the backend's limit.
    """

    def __init__(self, backend: Backend, rows: Rows, *, tile: int) -> None:
        self.backend = backend
        self.rows = rows
        self.tile = tile
        self._table: TokenTable | None = None
        self._broken: dict[int, str] = {}  # rows that could not begin: row → cause

    def set_token_table(self, table: TokenTable) -> None:
        """What rows with stop strings need; before the plan in which the first of them joins."""
        self._table = table

    def run(self, plan: StepPlan) -> StepResult:
        """One step. Raises only what can't be pinned to a row (the backend itself failed)."""
        started = time.monotonic()
        rows = self.rows
        self._apply_deltas(plan)
        size = len(plan.rows)
        step = _Step(
            tokens=np.full(size, NOT_SAMPLED, np.int32),
            finish=np.zeros(size, np.int8),
            stop_reasons={},
            logprobs={},
            faults={},
        )
        at = plan.rows
        computed = rows.num_computed[at]
        known = rows.num_tokens[at]
        counts = np.minimum(plan.counts, known - computed)
        counts[rows.ended[at]] = 0
        samples = plan.samples & (counts > 0) & (computed + counts == known)
        span = Span(at, computed, counts, samples)
        prepared = time.monotonic()
        try:
            self._forward(span, step)
            rows.num_computed[at] = computed + counts
            forwarded = time.monotonic()
            drawing = np.flatnonzero(samples)
            if step.faults:
                drawing = drawing[step.finish[drawing] == Finish.RUNNING]
            if len(drawing):
                self._sample(at, drawing, step)
        except Exception:
            rows.ended[at] = True  # the step that is launched already computes none of them
            raise
        if self._broken:
            self._report_broken(at, step)
        if step.faults:
            rows.ended[at[list(step.faults)]] = True
        return StepResult(
            seq=plan.seq,
            rows=at,
            tokens=step.tokens,
            num_computed=rows.num_computed[at],
            finish=step.finish,
            timings=StepTimings(
                started_s=started,
                prepare_ms=(prepared - started) * 1e3,
                forward_ms=(forwarded - prepared) * 1e3,
                sample_ms=(time.monotonic() - forwarded) * 1e3,
            ),
            stop_reasons=step.stop_reasons,
            logprobs=step.logprobs,
            faults=step.faults,
        )

    def _apply_deltas(self, plan: StepPlan) -> None:
        """Rows that leave, rows that join, blocks that were appended: in this order."""
        for row in plan.leaves:
            self.rows.leave(row)
            self._broken.pop(row, None)
        for join in plan.joins:
            self._join(join)
        if len(plan.blocks):
            row, group, index, block = plan.blocks.T
            self.rows.block_tables[group, row, index] = block

    def _join(self, join: RowJoin) -> None:
        """Begin a row; one that can't begin ends with FAULT in the first step that lists it."""
        self._broken.pop(join.row, None)
        try:
            self.rows.join(join, self._table)
            sampling = compile_row(join.params, eos_ids=join.eos_ids, prompt_len=join.prompt_len)
            self.backend.set_row(join.row, sampling)
        except Exception as error:
            log.exception("a row could not begin")
            self.rows.leave(join.row)
            self._broken[join.row] = _cause(error)

    def _report_broken(self, at: Int32, step: _Step) -> None:
        for index, row in enumerate(at.tolist()):
            cause = self._broken.pop(row, None)
            if cause is not None:
                step.fault(index, cause)

    def _forward(self, span: Span, step: _Step) -> None:
        """Compute the span's tokens. If a call fails, find the row that makes it fail."""
        try:
            for batch in forward_batches(self.rows, span, self.tile):
                self.backend.forward(batch)
        except Exception as error:
            indices = np.flatnonzero(span.counts)
            self._one_by_one(indices, step, error, lambda i: self._forward_row(span, i))

    def _forward_row(self, span: Span, index: int) -> None:
        # Writing a token's KV again is harmless: the same values go to the same slots.
        for batch in forward_batches(self.rows, span.only(index), self.tile):
            self.backend.forward(batch)

    def _sample(self, at: Int32, drawing: NDArray[np.intp], step: _Step) -> None:
        output = SampleOutput(np.empty(0, np.int32))
        try:
            output = self._draw(at[drawing])
        except Exception as error:
            singles: list[SampleOutput] = []
            drawing = self._one_by_one(
                drawing, step, error, lambda i: singles.append(self._draw(at[i : i + 1]))
            )
            if not len(drawing):
                return
            output = SampleOutput(
                np.concatenate([single.tokens for single in singles]),
                {i: s.logprobs[0] for i, s in enumerate(singles) if s.logprobs},
            )
        self._append(at, drawing, output, step)

    def _draw(self, rows: Int32) -> SampleOutput:
        # A draw depends on the row's state alone, so it may be repeated.
        return self.backend.sample(SampleBatch(rows, self.rows.tokens, self.rows.num_tokens))

    def _one_by_one(
        self,
        indices: NDArray[np.intp],
        step: _Step,
        error: Exception,
        call: Callable[[int], None],
    ) -> NDArray[np.intp]:
        """Repeat a failed call row by row: rows that fail again end with FAULT.

        Returns the indices that succeed. A row that was alone is the one that failed. When several
        rows fail and none succeeds it is not the rows: raises the first error.
        """
        if len(indices) == 1:
            log.error("a row failed", exc_info=error)
            step.fault(int(indices[0]), _cause(error))
            return indices[:0]
        log.error("a step failed and is repeated row by row", exc_info=error)
        good = []
        for index in indices.tolist():
            try:
                call(index)
                good.append(index)
            except Exception as again:
                step.fault(index, _cause(again))
        if not good:
            raise error
        return np.array(good, np.intp)

    def _append(
        self, at: Int32, drawing: NDArray[np.intp], output: SampleOutput, step: _Step
    ) -> None:
        """Store the drawn tokens and end the rows that stop with them."""
        rows = self.rows
        tokens = output.tokens
        for i, logprobs in output.logprobs.items():
            step.logprobs[int(drawing[i])] = logprobs
        if tokens.min() < 0:
            for index in drawing[tokens < 0].tolist():
                step.fault(index, NO_TOKEN)
                step.logprobs.pop(index, None)
            drawing, tokens = drawing[tokens >= 0], tokens[tokens >= 0]
        drawn = at[drawing]
        lengths = rows.num_tokens[drawn]
        rows.tokens[drawn, lengths] = tokens
        rows.num_tokens[drawn] = lengths + 1
        step.tokens[drawing] = tokens

        finish = np.where(lengths + 1 >= rows.max_len[drawn], Finish.LENGTH, Finish.RUNNING)
        if rows.stops:
            for i, row in enumerate(drawn.tolist()):
                stops = rows.stops.get(row)
                if stops is not None:
                    self._match(stops.push, int(drawing[i]), i, lengths, tokens, finish, step)
        if rows.stop_width:
            stopped = (rows.stop_ids[: rows.stop_width, drawn] == tokens).any(axis=0)
            if stopped.any():
                finish[stopped] = Finish.STOP_TOKEN
                for i in np.flatnonzero(stopped).tolist():
                    index, token = int(drawing[i]), int(tokens[i])
                    step.stop_reasons.pop(index, None)
                    if token not in rows.eos[int(drawn[i])]:
                        step.stop_reasons[index] = token
        step.finish[drawing] = np.where(step.finish[drawing] == Finish.FAULT, Finish.FAULT, finish)
        rows.ended[drawn] = finish != Finish.RUNNING

    @staticmethod
    def _match(
        push: Callable[[int, int], str | None],
        index: int,
        i: int,
        lengths: Int32,
        tokens: Int32,
        finish: NDArray[np.int_],
        step: _Step,
    ) -> None:
        try:
            stop = push(int(lengths[i]), int(tokens[i]))
        except Exception as error:
            log.exception("matching a stop string failed")
            step.fault(index, _cause(error))
            return
        if stop is not None:
            finish[i] = Finish.STOP_STRING
            step.stop_reasons[index] = stop


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
