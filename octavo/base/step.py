"""The step contract between the scheduler and the runner.

The scheduler plans step *n+1* and launches it before step *n*'s tokens are known. So a plan's
counts are *upper bounds*: the row arrays that live with the device (tokens, lengths) are the truth,
and the scheduler learns them from the `StepResult` one step later.

    row    tokens[row]: │ prompt …                │ generated … │
                        0          num_computed[row]      num_tokens[row]
                                   └─ a step computes [num_computed, num_computed + count) ─┘

A row that ended in step *n* (a stop id, a stop string, its length) computes nothing in step *n+1*
even though the plan lists it; its result says "not sampled" (token −1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from octavo.base.sampling_params import SamplingParams

Int32 = NDArray[np.int32]

NOT_SAMPLED = -1


class Finish(IntEnum):
    """How a row ended in a step. The values cross the step contract as int8."""

    RUNNING = 0
    STOP_TOKEN = 1  # an EOS id or one of stop_token_ids
    LENGTH = 2  # max_tokens or the context
    STOP_STRING = 3  # matched on token bytes by the runner
    FAULT = 4  # this row alone failed (for instance its logits are not finite)


@dataclass(frozen=True, slots=True)
class RowJoin:
    """A row of request state begins (a new request, or one that was preempted).

    tokens: int32 [n], prompt and, after a preemption, what was generated; owned by the receiver.
    prompt_len: how many of `tokens` are the prompt.
    num_computed: tokens whose KV already lies in the row's blocks (prefix hit), else 0.
    max_len: the row ends with LENGTH once it holds this many tokens.
    """

    row: int
    tokens: Int32
    prompt_len: int
    max_len: int
    params: SamplingParams
    eos_ids: tuple[int, ...]
    num_computed: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What changes and what to compute in one step. Applied in the order of the fields.

    leaves: rows that end (finished, aborted or preempted).
    joins: rows that begin.
    blocks: int32 [k, 4], appended blocks as (row, group, index in the row's table, block id).
    rows, counts: int32 [m], rows to compute and at most how many tokens of each.
    samples: bool [m], whether the row's last token is computed here, so that it draws a token.
    """

    seq: int
    leaves: tuple[int, ...]
    joins: tuple[RowJoin, ...]
    blocks: Int32
    rows: Int32
    counts: Int32
    samples: NDArray[np.bool_]

    @property
    def num_tokens(self) -> int:
        """Upper bound of the tokens this step computes."""
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one drawn token, from the raw logits.

    logprob, rank: of the drawn token (rank 1 is the most likely).
    top_ids: int32 [k], top: float32 [k], the k most likely, best first.
    """

    logprob: float
    rank: int
    top_ids: Int32
    top: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Where a step's time went, in milliseconds, and when it ran (monotonic seconds)."""

    started_s: float
    prepare_ms: float
    forward_ms: float
    sample_ms: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. Arrays are parallel to the plan's `rows`.

    tokens: int32 [m], the drawn token or NOT_SAMPLED.
    num_computed: int32 [m], the row's computed tokens after the step (the truth).
    finish: int8 [m], a `Finish`.
    stop_reasons: plan index → the stop id or stop string that ended the row.
    logprobs: plan index → the drawn token's, for rows that asked.
    faults: plan index → what failed in that row.
    """

    seq: int
    rows: Int32
    tokens: Int32
    num_computed: Int32
    finish: NDArray[np.int8]
    timings: StepTimings
    stop_reasons: dict[int, int | str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
