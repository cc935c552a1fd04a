"""Engine deltas → what callers get: text, cut at stops, in the kind that each request wants."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from octavo.base.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.base.step import Finish
from octavo.engine.messages import FINISH_REASONS, Delta, TokenLogprob
from octavo.text import Detokenizer, StopCutter, Tokenizer


@dataclass(slots=True)
class _Piece:
    """What is new and not yet handed out."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)


class RequestState:
    """One request at the client: its text so far and what the caller has not seen yet.

    key: its id on the channel, never used again; request_id is the caller's, who may reuse it.
    `done` once the terminal output exists. `cut`: a stop string was found here though the engine
    goes on, which it should be told.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        arrival_s: float,
        *,
        key: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.key = request_id if key is None else key
        self.params = params
        self.done = False
        self.cut = False
        self._prompt = prompt
        self.prompt_ids = prompt_ids
        self._tokenizer = tokenizer
        self.arrival_s = arrival_s
        self._metrics = RequestMetrics(arrival_s=arrival_s)
        self._detokenizer = (
            Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
            if params.detokenize
            else None
        )
        self._cutter = StopCutter(params.stop_strings, params.include_stop_str_in_output)
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative = 0.0
        self._new = _Piece()
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    def push(self, delta: Delta) -> None:
        """Take in one step's tokens, or the end."""
        if self.done:
            return
        now = time.monotonic()
        metrics = self._metrics
        if delta.token_ids and metrics.first_token_s is None:
            metrics.first_token_s = now
        if delta.first_scheduled_s is not None:
            metrics.first_scheduled_s = delta.first_scheduled_s
        metrics.num_preemptions = delta.num_preemptions
        metrics.num_cached_tokens = delta.num_cached_tokens
        self._take(delta.token_ids)
        if delta.logprobs is not None:
            self._take_logprobs(delta.token_ids, delta.logprobs)
        if delta.terminal:
            self._end(delta, now)
        elif self._cutter.stop is not None:
            self.cut = True
            self._end(Delta(self.key, [], finish=Finish.STOP_STRING), now)

    def output(self) -> RequestOutput | None:
        """What the caller should see now, in the request's kind; None while that is nothing."""
        kind = self.params.output_kind
        new = self._new
        if kind is RequestOutputKind.FINAL_ONLY:
            if not self.done:
                return None
        elif not self.done and not new.text and (self._detokenizer or not new.token_ids):
            return None  # ids without text (a part of a character) wait for it
        self._new = _Piece()
        wants = self.params.logprobs is not None
        if kind is RequestOutputKind.DELTA:
            text, ids, logprobs = new.text, new.token_ids, new.logprobs
        else:
            text, ids, logprobs = "".join(self._text), self._ids.copy(), self._logprobs.copy()
            self._text = [text]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=[
                CompletionOutput(
                    index=0,
                    text=text,
                    token_ids=ids,
                    cumulative_logprob=self._cumulative if wants else None,
                    logprobs=logprobs if wants else None,
                    finish_reason=self._finish_reason,
                    stop_reason=self._stop_reason,
                )
            ],
            finished=self.done,
            metrics=self._metrics,
            num_cached_tokens=self._metrics.num_cached_tokens,
        )

    def _take(self, ids: list[int]) -> None:
        first = len(self._ids)
        self._ids += ids
        self._new.token_ids += ids
        if self._detokenizer is None:
            return
        # Stop strings count from the first token after min_tokens, as they do in the engine.
        free = max(0, min(len(ids), self.params.min_tokens - first))
        if free:
            self._show(self._detokenizer.push(ids[:free]))
        if free < len(ids):
            self._show(self._cutter.push(self._detokenizer.push(ids[free:])))

    def _take_logprobs(self, ids: list[int], logprobs: list[TokenLogprob]) -> None:
        name = self._tokenizer.token_text
        for token, item in zip(ids, logprobs, strict=True):
            self._cumulative += item.logprob
            row = {token: Logprob(item.logprob, item.rank, name(token))}
            for rank, (other, value) in enumerate(zip(item.top_ids, item.top, strict=True), 1):
                row.setdefault(other, Logprob(value, rank, name(other)))
            self._logprobs.append(row)
            self._new.logprobs.append(row)

    def _end(self, delta: Delta, now: float) -> None:
        if self._detokenizer is not None:
            self._show(self._cutter.push(self._detokenizer.flush()))
            self._show(self._cutter.flush())
        self._finish_reason = "abort" if delta.aborted else FINISH_REASONS[Finish(delta.finish)]
        self._stop_reason = delta.stop_reason
        if delta.fault is not None:
            self._stop_reason = delta.fault  # what failed; finish_reason is "error"
        elif delta.finish == Finish.STOP_STRING and self._cutter.stop is not None:
            self._stop_reason = self._cutter.stop
        self._metrics.finished_s = now
        self.done = True

    def _show(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._new.text += text


class OutputProcessor:
    """All requests that are under way at this client, by their key."""

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, key: str) -> bool:
        return key in self._states

    def add(self, state: RequestState) -> None:
        self._states[state.key] = state

    def remove(self, key: str) -> RequestState | None:
        return self._states.pop(key, None)

    def keys(self) -> list[str]:
        return list(self._states)

    def push(self, delta: Delta) -> RequestState | None:
        """Take a delta in; the state it changed, or None for a key that is not here (any more)."""
        state = self._states.get(delta.request_id)
        if state is None:
            return None
        state.push(delta)
        if state.done:
            del self._states[state.key]
        return state
