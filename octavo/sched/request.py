"""A request as the scheduler sees it.

tokens   │ prompt … │ output … │ placeholders (sampled, not yet known) │
         0                  num_tokens                           planned_len
              num_computed ─► chases planned_len; a step computes [num_computed, + count)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec
import numpy as np

from octavo.base.sampling_params import SamplingParams
from octavo.base.step import Finish, Int32, TokenLogprobs
from octavo.kv import BlockTable


class State(Enum):
    """Where a request is. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """prompt: int32 [n]. arrival_s: monotonic seconds, kept for the caller."""

    request_id: str
    prompt: Int32
    params: SamplingParams
    eos_ids: tuple[int, ...]
    arrival_s: float = 0.0

    # Set and kept by the scheduler.
    max_len: int = 0
    order: int = 0  # of arrival, from 0
    state: State = State.WAITING
    row: int = -1
    output: list[int] = field(default_factory=list)
    num_computed: int = 0  # as planned: launched steps count as done
    in_flight: int = 0  # launched steps whose sampled token is not known yet
    term: int = 0  # counts runs on a row, so that a late result finds its own
    table: BlockTable | None = None
    num_preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def planned_len(self) -> int:
        return len(self.prompt) + len(self.output) + self.in_flight

    def tokens(self) -> Int32:
        """Prompt and output, a fresh array."""
        return np.concatenate([self.prompt, np.asarray(self.output, np.int32)]).astype(np.int32)


class Update(msgspec.Struct, gc=False):
    """What a step did for one request. token_ids: those that are new."""

    request_id: str
    token_ids: list[int]
    finish: Finish = Finish.RUNNING
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running request gave its blocks back and will be computed again."""

    request_id: str
    step: int
    num_tokens_lost: int
    num_blocks_won: int
