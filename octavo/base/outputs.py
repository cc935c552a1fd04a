"""What a caller gets back. Names and meanings follow vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """Log-probability (natural, from the raw logits) of one token, its rank from 1, its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence. In a stream of deltas `text` and `token_ids` hold the new part only.

    finish_reason: "stop", "length", "abort", "error", or None while it runs.
    stop_reason: the stop id or stop string that ended it; None for EOS and for length; after
        "error" what failed.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Monotonic times in seconds and counts of one request."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """A request and what it has produced so far (or, in a stream of deltas, what is new)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: None = field(default=None, repr=False)
