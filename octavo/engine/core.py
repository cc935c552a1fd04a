"""The engine's loop.

    take messages → plan n+1 → launch n+1 → wait for result n → apply → send

One step runs ahead: while the device computes step n, the loop plans n+1 and hands it over, so the
device never waits for Python. With depth 0 every step is awaited before the next is planned; the
code is the same. An idle loop blocks on its inbox.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from octavo.base.errors import EngineError, RequestError
from octavo.base.step import NOT_SAMPLED, Finish, StepPlan, StepResult, StepTimings, TokenLogprobs
from octavo.engine.channel import EngineEnd
from octavo.engine.messages import (
    FINISH_REASONS,
    Abort,
    AddRequest,
    Delta,
    EngineInfo,
    EngineStats,
    GetStats,
    Outputs,
    Shutdown,
    ToEngine,
    TokenLogprob,
    TokenTable,
    refusal,
)
from octavo.engine.verify import verify_rows
from octavo.memory import process_memory
from octavo.obs import EngineCounters, fields
from octavo.runner import DeviceThread, Launched, Runner
from octavo.runner import TokenTable as RowTokenTable
from octavo.sampling import SeedSource
from octavo.sched import Request, Scheduler, Update
from octavo.text.token_bytes import TokenBytes

log = logging.getLogger(__name__)

_MOST_FAILED_STEPS = 3  # one after the other: the backend is taken to be broken
_ATTENTIVE_S = 0.25  # while a step takes longer than this, messages are answered between


@dataclass(slots=True)
class _Live:
    """What the loop keeps of a request: times and counts."""

    request: Request
    arrival_s: float
    first_scheduled_s: float | None = None
    last_token_s: float | None = None
    generated: int = 0


class EngineCore:
    """Scheduler, runner and channel, joined. All methods run on the loop's thread.

    depth: steps launched ahead of the one whose result is awaited, 0 or 1.
    check: after every step prove the invariants of scheduler and pool, and with nothing in flight
        that they and the rows agree.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        end: EngineEnd,
        info: EngineInfo,
        depth: int,
        seed: int | None,
        check: bool = False,
    ) -> None:
        self.info = info
        self.counters = EngineCounters()
        self._scheduler = scheduler
        self._runner = runner
        self._end = end
        self._depth = depth
        self._check = check
        self._seeds = SeedSource(seed)
        self._device = DeviceThread(runner.run)
        self._flight: deque[Launched] = deque()
        self._launched_s = 0.0
        self._step = 0
        self._failed = 0
        self._live: dict[str, _Live] = {}
        self._stopping = False

    def run(self) -> None:
        """Serve messages until `Shutdown`. Raises when the backend is broken."""
        idle = True
        while True:
            for message in self._end.receive(wait=idle):
                self._handle(message)
            if self._stopping:
                return
            plan = self._scheduler.plan()
            if plan is not None:
                self._launch(plan)
            idle = not self._flight
            if idle and self._scheduler.has_work():
                raise EngineError("requests wait, and the scheduler can plan none of them")
            if self._flight and (plan is None or len(self._flight) > self._depth):
                self._retire(self._flight.popleft())

    def close(self) -> None:
        """Let the launched steps finish and give the backend's memory back."""
        self._device.close()
        self._runner.backend.close()

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(message.request_ids)
        elif isinstance(message, GetStats):
            self._end.send(self._stats(message.number))
        elif isinstance(message, TokenTable):
            table = TokenBytes.from_packed(message.blob, message.offsets)
            self._runner.set_token_table(RowTokenTable(table, message.special))
        elif isinstance(message, Shutdown):
            self._stopping = True

    def _add(self, message: AddRequest) -> None:
        """Admit a request or refuse it. The seed is settled here, for as long as it lives."""
        try:
            prompt = np.frombuffer(message.prompt, np.int32)
            self._check_request(message, prompt)
            params = message.params
            if params.seed is None and not params.greedy:
                params = params.replace(seed=self._seeds.draw())
            request = Request(
                request_id=message.request_id,
                prompt=prompt,
                params=params,
                eos_ids=message.eos_ids,
                arrival_s=message.arrival_s,
            )
            self._scheduler.add(request)
        except RequestError as error:
            self.counters.refused += 1
            self._end.send(refusal(message.request_id, error))
            return
        self._live[message.request_id] = _Live(request, message.arrival_s)
        self.counters.accepted += 1
        self.counters.prompt_tokens += len(prompt)

    def _check_request(self, message: AddRequest, prompt: np.ndarray) -> None:
        """What would harm others is refused here, too, whatever the client has checked."""
        vocab = self.info.vocab_size
        if message.request_id in self._live:
            raise RequestError("request_id is in use", param="request_id")
        if not len(prompt) or prompt.min() < 0 or prompt.max() >= vocab:
            limit = f"at least one token id, each in [0, {vocab})"
            raise RequestError("prompt", param="prompt", limit=limit)
        message.params.check_vocab(vocab)
        if any(not 0 <= token < vocab for token in message.eos_ids):
            raise RequestError("eos_ids", param="eos_ids", limit=f"ids below {vocab}")

    def _abort(self, request_ids: list[str]) -> None:
        deltas = []
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is None:
                continue
            self._scheduler.abort(request_id)
            self.counters.wasted_tokens += live.generated
            log.info("aborted %s", fields(id=request_id, wasted_tokens=live.generated))
            delta = Delta(request_id, [], aborted=True)
            self._finish(delta, live, "abort", time.monotonic())
            deltas.append(delta)
        if deltas:
            self._end.send(Outputs(self._step, deltas))

    def _launch(self, plan: StepPlan) -> None:
        self._step = plan.seq
        self._launched_s = time.monotonic()
        self._flight.append(self._device.launch(plan))

    def _retire(self, launched: Launched) -> None:
        """Wait for a step and tell the clients. Messages are answered while it takes long."""
        while not launched.wait(_ATTENTIVE_S):
            for message in self._end.receive(wait=False):
                self._handle(message)
        try:
            result = launched.result()
            if (result.tokens >= 0).any():  # a step that computed nothing proves nothing
                self._failed = 0
        except Exception as error:
            result = self._failed_step(launched.plan, error)
        updates = self._scheduler.apply(result)
        if self._check:
            self._scheduler.check()
            if not self._flight:
                verify_rows(self._scheduler, self._runner.rows)
        self._observe(launched.plan, result)
        if updates:
            deltas = self._deltas(updates, result.timings.started_s)
            if deltas:
                self._end.send(Outputs(result.seq, deltas))

    def _failed_step(self, plan: StepPlan, error: Exception) -> StepResult:
        """The result of a step that failed as a whole: each of its rows ends with FAULT."""
        log.error("step %d failed", plan.seq, exc_info=error)
        self.counters.failed_steps += 1
        self._failed += 1
        if self._failed > _MOST_FAILED_STEPS:
            raise EngineError(
                f"{self._failed} steps failed one after the other; the last: "
                f"{type(error).__name__}: {error}"
            ) from error
        size = len(plan.rows)
        cause = f"the step failed: {type(error).__name__}: {error}"
        return StepResult(
            seq=plan.seq,
            rows=plan.rows,
            tokens=np.full(size, NOT_SAMPLED, np.int32),
            num_computed=np.zeros(size, np.int32),
            finish=np.full(size, Finish.FAULT, np.int8),
            timings=StepTimings(time.monotonic(), 0.0, 0.0, 0.0),
            faults=dict.fromkeys(range(size), cause),
        )

    def _observe(self, plan: StepPlan, result: StepResult) -> None:
        counters, timings = self.counters, result.timings
        counters.steps += 1
        counters.step_ms.observe(timings.prepare_ms + timings.forward_ms + timings.sample_ms)
        counters.step_tokens.observe(float(plan.num_tokens))
        counters.preemptions = self._scheduler.num_preemptions

    def _deltas(self, updates: list[Update], started_s: float) -> list[Delta]:
        now = time.monotonic()
        counters = self.counters
        deltas = []
        for update in updates:
            live = self._live.get(update.request_id)
            if live is None:
                continue
            delta = Delta(update.request_id, update.token_ids)
            if live.first_scheduled_s is None:
                live.first_scheduled_s = started_s
                counters.queue_s.observe(max(0.0, started_s - live.arrival_s))
            if update.token_ids:
                live.generated += len(update.token_ids)
                counters.generated_tokens += len(update.token_ids)
                if live.last_token_s is None:
                    counters.ttft_s.observe(now - live.arrival_s)
                    delta.first_scheduled_s = live.first_scheduled_s
                else:
                    counters.itl_s.observe(now - live.last_token_s)
                live.last_token_s = now
            if update.logprobs is not None:
                delta.logprobs = [_wire(item) for item in update.logprobs]
            if update.finish:
                delta.finish = int(update.finish)
                delta.stop_reason = update.stop_reason
                delta.fault = update.fault
                reason = FINISH_REASONS[Finish(update.finish)] or "error"
                self._finish(delta, live, reason, now)
            deltas.append(delta)
        return deltas

    def _finish(self, delta: Delta, live: _Live, reason: str, now: float) -> None:
        """Book the end of a request; its terminal delta goes out with the caller's message."""
        del self._live[delta.request_id]
        delta.first_scheduled_s = live.first_scheduled_s
        delta.num_preemptions = live.request.num_preemptions
        self.counters.finished[reason] += 1
        self.counters.e2e_s.observe(now - live.arrival_s)

    def _stats(self, number: int) -> EngineStats:
        scheduler, now = self._scheduler, time.monotonic()
        kv = scheduler.kv
        return EngineStats(
            number=number,
            at_s=now,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_blocks_used=kv.num_used,
            kv_blocks_total=self.info.num_blocks,
            kv_blocks_peak=kv.peak_used,
            step=self._step,
            step_age_s=now - self._launched_s if self._flight else None,
            memory=process_memory(),
            counters=self.counters,
        )


def _wire(item: TokenLogprobs) -> TokenLogprob:
    return TokenLogprob(
        float(item.logprob), int(item.rank), item.top_ids.tolist(), item.top.tolist()
    )
