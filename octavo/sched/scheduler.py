"""Continuous batching without phases: every request's computed length chases its planned length.

A plan goes through the running requests in order of arrival and then through the waiting ones,
first come first served, under `max_num_batched_tokens`. Nobody is admitted while a running request
lacks tokens or blocks, so only the latest running one is ever part-way through its tokens: those
that decode (one token each) come before it. The plan is made one step ahead of the results (see
`octavo.base.step`): counts are upper bounds.

Every count here is planned: launched steps are taken as done.

    prompt and output │ placeholders │
    0          num_tokens      planned_len ≤ max_len
           num_computed ─► planned_len        (a plan computes [num_computed, num_computed + count))

When blocks run short, in this order:

1. What the steps in flight will give back (fenced blocks, blocks behind a window) is waited for. A
   window group holds up to a chunk too much while a step is in flight; taking that for a shortage
   would preempt a request that fits, readmit it at once, and preempt it again.
2. The latest arrival stands back: it keeps its blocks and computes nothing.
3. A request that an older one is short of gives its blocks back and waits again (preemption by
   recompute): always the latest arrival, never the oldest, which therefore always finishes.

A request is admitted, for the first time or again, when the blocks for its tokens and one more fit
beside what the running ones will yet take for theirs and one more. That keeps it from a loop of
preempting and readmitting: a preemption leaves fewer blocks free, all returns counted, than the
victim needs to come back, so it waits until a running request ends or gets past its prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from octavo.base.errors import CapacityError, ContextLengthError, QueueFullError
from octavo.base.step import Finish, Int32, RowJoin, StepPlan, StepResult
from octavo.kv import Appended, KvCache
from octavo.sched.request import Preemption, Request, State, Update

_MOST_EVENTS = 1024


@dataclass(frozen=True)
class SchedulerConfig:
    """Bounds of a plan and of the queue; meanings as in `EngineArgs`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_num_queued_reqs: int = 4096


@dataclass(slots=True)
class _Entry:
    """One request's part of the plan that is being made."""

    request: Request
    count: int
    sample: bool
    appended: list[Appended]
    join: RowJoin | None


@dataclass
class _Draft:
    """A plan in the making. budget: tokens left. short: a running request waits for blocks."""

    budget: int
    entries: list[_Entry] = field(default_factory=list)
    short: bool = False


class Scheduler:
    """Plans steps and applies their results. Knows requests and blocks, never a tensor."""

    def __init__(self, config: SchedulerConfig, kv: KvCache) -> None:
        assert kv.chunk >= config.max_num_batched_tokens, "the bound of what one request holds"
        self.config = config
        self.kv = kv
        self.num_preemptions = 0
        self.preemptions: deque[Preemption] = deque(maxlen=_MOST_EVENTS)
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in order of arrival
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._leaves: list[int] = []
        self._launched: dict[int, list[tuple[Request, int, int, bool]]] = {}
        self._seq = 0
        self._arrivals = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that have a row, in order of arrival."""
        return tuple(self._running)

    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it if it could never run.

        max_len becomes prompt + max_tokens, at most the context. Without max_tokens it is also cut
        to what the pool holds; with max_tokens a request that the pool cannot hold is refused.
        Raises ContextLengthError, CapacityError, QueueFullError.
        """
        config, kv = self.config, self.kv
        assert len(request.prompt) > 0, "an empty prompt is refused before"
        assert request.request_id not in self._requests, "an id in use is refused before"
        prompt_len, max_tokens = len(request.prompt), request.params.max_tokens
        if prompt_len >= config.max_model_len:
            raise ContextLengthError(
                f"the prompt has {prompt_len} tokens and the context holds "
                f"{config.max_model_len}, of which at least one is for the reply",
                param="prompt",
            )
        wanted = config.max_model_len if max_tokens is None else prompt_len + max_tokens
        request.max_len = min(wanted, config.max_model_len)
        least = prompt_len + 1 if max_tokens is None else request.max_len
        # The last token's KV is never computed, so `least` tokens need the blocks of one fewer.
        if least - 1 > kv.longest:
            raise CapacityError(
                f"{least} tokens (prompt {prompt_len}) need {kv.most_blocks(least - 1)} KV blocks "
                f"and the pool has {kv.num_blocks}; the longest that fits is {kv.longest + 1} "
                f"tokens with the reply",
                param="prompt" if prompt_len > kv.longest else "max_tokens",
            )
        request.max_len = min(request.max_len, kv.longest + 1)
        if len(self._waiting) >= config.max_num_queued_reqs:
            raise QueueFullError(
                "too many requests wait",
                value=len(self._waiting),
                limit=f"fewer than {config.max_num_queued_reqs}",
                remedy="try again later",
            )
        request.order = self._arrivals
        self._arrivals += 1
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """End a request at once; unknown ids are ignored. Its blocks are free after the fence."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request)

    def plan(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute now."""
        draft = _Draft(self.config.max_num_batched_tokens)
        for request in tuple(self._running):
            if request.state is not State.RUNNING:
                break  # it was preempted, and so was everyone after it
            planned = request.planned_len
            if planned < request.max_len:  # else its last token is known to be on its way
                count = min(planned - request.num_computed, draft.budget)
                if count > 0:
                    self._schedule(draft, request, count, planned)
        self._admit(draft)
        return self._finish_plan(draft) if draft.entries else None

    def apply(self, result: StepResult) -> list[Update]:
        """Learn what a step did; returns the requests that got a token or ended."""
        self.kv.pool.retire(result.seq)
        updates: list[Update] = []
        tokens, finish = result.tokens.tolist(), result.finish.tolist()
        computed = result.num_computed.tolist()
        for index, (request, term, count, sampled) in enumerate(self._launched.pop(result.seq)):
            if request.state is State.FINISHED:
                continue
            if sampled:
                request.in_flight -= 1
            token, ended = tokens[index], finish[index]
            if token >= 0:
                request.output.append(token)
                updates.append(Update(request.request_id, [token]))
            elif ended:
                updates.append(Update(request.request_id, []))
            if index in result.logprobs:
                updates[-1].logprobs = [result.logprobs[index]]
            if ended:
                update = updates[-1]
                update.finish = Finish(ended)
                update.stop_reason = result.stop_reasons.get(index)
                update.fault = result.faults.get(index)
                self._end(request)
            elif request.term == term and request.table is not None:
                assert count == 0 or computed[index] <= request.num_computed
                self.kv.drop_unseen(request.table, computed[index])
        return updates

    def check(self) -> None:
        """Prove the scheduler's and the pool's invariants. Between steps, not within `plan`."""
        waiting = {request.request_id for request in self._waiting}
        running = {request.request_id for request in self._running}
        assert not waiting & running
        assert waiting | running == set(self._requests)
        rows = [request.row for request in self._running]
        every = list(range(self.config.max_num_seqs))
        assert sorted(rows + self._free_rows) == every, "every row is used or free"
        for queue in (self._waiting, self._running):
            orders = [request.order for request in queue]
            assert orders == sorted(orders), "queues are in order of arrival"
        sampled = Counter(
            id(request)
            for launched in self._launched.values()
            for request, _, _, sample in launched
            if sample
        )
        for request in self._requests.values():
            assert request.in_flight == sampled[id(request)], "placeholders are launched samples"
        for request in self._running:
            assert request.state is State.RUNNING
            assert request.table is not None
            assert request.num_computed <= request.planned_len <= request.max_len
            assert request.num_computed <= request.table.capacity
        for request in self._running[:-1]:
            assert request.num_tokens - request.num_computed <= 1, "only the latest is part-way"
        for request in self._waiting:
            assert request.state is State.WAITING
            assert request.table is None
            assert request.row < 0
        if not self._launched:
            assert self.kv.pool.num_fenced == 0, "nothing runs that could touch a block"
            assert self._unseen() == 0, "blocks behind a window are returned"
        self.kv.check(r.table for r in self._running if r.table is not None)

    def _schedule(self, draft: _Draft, request: Request, count: int, planned: int) -> None:
        """Put `count` tokens into the plan, taking blocks from later arrivals if short."""
        table = request.table
        assert table is not None
        upto = request.num_computed + count
        while (appended := self.kv.append(table, upto)) is None:
            if not self._make_room(request, self.kv.growth(table, upto)):
                draft.short = True
                return
        draft.budget -= count
        draft.entries.append(_Entry(request, count, upto == planned, appended, None))

    def _make_room(self, request: Request, needed: int) -> bool:
        """Preempt the latest arrival; False if `request` itself stands back in this step."""
        pool = self.kv.pool
        if pool.num_free + pool.num_fenced + self._unseen() >= needed:
            return False  # steps in flight are about to give it back
        victim = self._running[-1]
        if victim is request:
            return False  # it keeps what it has until an older one needs it
        self._preempt(victim)
        return True

    def _unseen(self) -> int:
        """Blocks that fall behind windows when the launched steps have retired."""
        kv = self.kv
        return sum(
            kv.unseen(request.table, request.num_computed)
            for request in self._running
            if request.table is not None
        )

    def _preempt(self, victim: Request) -> None:
        """The latest arrival waits again. It is not in the plan yet: that goes by arrival."""
        assert victim.table is not None
        won = sum(map(len, victim.table.blocks))
        lost = victim.num_computed
        self._leave_row(victim)
        victim.state = State.WAITING
        victim.num_computed = 0
        victim.num_preemptions += 1
        self._waiting.appendleft(victim)
        self.num_preemptions += 1
        self.preemptions.append(Preemption(victim.request_id, self._seq + 1, lost, won))

    def _admit(self, draft: _Draft) -> None:
        """Take waiting requests while rows, tokens and blocks last."""
        if not self._waiting or draft.budget <= 0 or draft.short:
            return
        reserved = sum(self._still_needed(request) for request in self._running)
        while self._waiting and draft.budget > 0:
            request = self._waiting[0]
            if not self._free_rows or request.in_flight:
                break
            needed = self.kv.most_blocks(_reach(request))
            if self._running and needed > self.kv.pool.num_free - reserved:
                break
            count = min(request.num_tokens, draft.budget)
            table = self.kv.new_table()
            appended = self.kv.append(table, count)
            if appended is None:
                break
            self._waiting.popleft()
            self._start(draft, request, count, appended)
            request.table = table
            reserved += self._still_needed(request)

    def _start(self, draft: _Draft, request: Request, count: int, appended: list[Appended]) -> None:
        row = self._free_rows.pop()
        request.state = State.RUNNING
        request.row = row
        request.term += 1
        self._running.append(request)  # the latest: victims were, and waited in front
        join = RowJoin(
            row=row,
            tokens=request.tokens(),
            prompt_len=len(request.prompt),
            max_len=request.max_len,
            params=request.params,
            eos_ids=request.eos_ids,
        )
        draft.budget -= count
        sample = count == request.planned_len
        draft.entries.append(_Entry(request, count, sample, appended, join))

    def _still_needed(self, request: Request) -> int:
        """Blocks that a running request will yet take for the tokens it has and one more."""
        assert request.table is not None
        return self.kv.still_needed(request.table, request.num_computed, _reach(request))

    def _finish_plan(self, draft: _Draft) -> StepPlan:
        self._seq += 1
        entries = draft.entries
        launched = []
        for entry in entries:
            request = entry.request
            request.num_computed += entry.count
            request.in_flight += entry.sample
            launched.append((request, request.term, entry.count, entry.sample))
        self._launched[self._seq] = launched
        self.kv.pool.launch(self._seq)
        leaves, self._leaves = tuple(self._leaves), []
        blocks = [
            (entry.request.row, *appended) for entry in entries for appended in entry.appended
        ]
        return StepPlan(
            seq=self._seq,
            leaves=leaves,
            joins=tuple(entry.join for entry in entries if entry.join is not None),
            blocks=_array(blocks).reshape(-1, 4),
            rows=_array([entry.request.row for entry in entries]),
            counts=_array([entry.count for entry in entries]),
            samples=np.array([entry.sample for entry in entries], np.bool_),
        )

    def _leave_row(self, request: Request) -> None:
        """A running request gives back its row and its blocks.

        The row is free at once: a plan's leaves are applied before its joins.
        """
        self._running.remove(request)
        self._leaves.append(request.row)
        self._free_rows.append(request.row)
        request.row = -1
        request.term += 1
        assert request.table is not None
        self.kv.release(request.table)
        request.table = None

    def _end(self, request: Request) -> None:
        if request.state is State.RUNNING:
            self._leave_row(request)
        else:
            self._waiting.remove(request)
        request.state = State.FINISHED
        del self._requests[request.request_id]


def _reach(request: Request) -> int:
    """Tokens to have blocks for: those there are and one more. The last one's KV is never made."""
    return max(request.planned_len, min(request.planned_len + 1, request.max_len - 1))


def _array(values: list[int] | list[tuple[int, int, int, int]]) -> Int32:
    return np.array(values, np.int32)
