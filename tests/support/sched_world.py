"""A scheduler and an honest device, stepped like the engine's loop and checked after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from octavo.base.sampling_params import SamplingParams
from octavo.base.step import Finish, StepPlan
from octavo.kv import KvCache
from octavo.program.program import KvGroup, KvLayout
from octavo.sched import Request, Scheduler, SchedulerConfig
from tests.support.fake_device import FakeDevice, next_token

FULL = KvLayout((KvGroup(None, (0,)),), 4, 1, 2)
MIXED = KvLayout((KvGroup(None, (0,)), KvGroup(6, (1,)), KvGroup(6, (2,))), 4, 1, 2)
WINDOW = KvLayout((KvGroup(6, (0,)),), 4, 1, 2)

STOP_EVERY = 11


@dataclass
class World:
    """depth: steps launched ahead of the one whose result is awaited, as in the engine.

    stop_every: a drawn token divisible by it ends its request.
    """

    layout: KvLayout = FULL
    num_blocks: int = 64
    depth: int = 1
    max_num_seqs: int = 4
    budget: int = 16
    max_model_len: int = 64
    queue: int = 1000
    stop_every: int = STOP_EVERY
    outputs: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, Finish] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    steps: int = 0

    def __post_init__(self) -> None:
        self.kv = KvCache(self.layout, self.num_blocks, self.budget)
        config = SchedulerConfig(self.max_num_seqs, self.budget, self.max_model_len, self.queue)
        self.scheduler = Scheduler(config, self.kv)
        self.device = FakeDevice(self.layout, self.num_blocks, self.stop_every)
        self._requests: dict[str, Request] = {}
        self._settled: set[tuple[str, int]] = set()  # (request, run) that got past its prompt
        self._relief_at_preemption: dict[str, int] = {}
        self._oldest_waited: Counter[str] = Counter()

    def add(self, name: str, prompt: list[int], max_tokens: int | None = 8) -> Request:
        request = Request(
            name, np.array(prompt, np.int32), SamplingParams(max_tokens=max_tokens), ()
        )
        self.scheduler.add(request)
        self.scheduler.check()
        self._requests[name] = request
        self.outputs[name] = []
        return request

    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        if name not in self.ended:
            self.aborted.add(name)
        self.scheduler.check()

    def preempt(self) -> None:
        """Preempt the latest arrival although nothing is short; not while there is only one."""
        if self.scheduler.num_running > 1:
            victim = self.scheduler.running[-1]
            self.scheduler._preempt(victim)
            self._relief_at_preemption[victim.request_id] = -1  # it may come back at once
            self.scheduler.check()

    def step(self, meanwhile: Callable[[], None] | None = None) -> bool:
        """One turn of the loop; False when there is nothing left to do.

        meanwhile: called between launch and result, as the engine answers messages there.
        """
        oldest = self.scheduler.running[:1]
        before = self._preemptions()
        plan = self.scheduler.plan()
        self.scheduler.check()
        preempted = {name for name, n in self._preemptions().items() if n > before[name]}
        assert not preempted & {request.request_id for request in oldest}, "the oldest"
        for name in preempted:
            self._relief_at_preemption[name] = self._relief
        if plan is None and not self.device.in_flight:
            assert not self.scheduler.has_work(), "there is work and nothing moves"
            return False
        if plan is not None:
            self.steps += 1
            self._check_plan(plan, oldest)
            self.device.launch(plan)
        if meanwhile is not None:
            meanwhile()
        if plan is None or self.device.in_flight > self.depth:
            self._apply()
        return True

    def run(self) -> None:
        while self.step():
            assert self.steps < 20_000, "no end"
        assert set(self.ended) | self.aborted == set(self.outputs)
        assert not set(self.ended) & self.aborted
        assert self.kv.num_used == 0
        assert self.kv.pool.num_free == self.num_blocks

    @property
    def _relief(self) -> int:
        """What can make room for a preempted request; grows a bounded number of times.

        Requests that ended and, where there are windows, those that need no more chunks.
        """
        ends = len(self.ended) + len(self.aborted)
        windows = any(group.window is not None for group in self.layout.groups)
        return ends + (len(self._settled) if windows else 0)

    def _preemptions(self) -> dict[str, int]:
        return {name: request.num_preemptions for name, request in self._requests.items()}

    def _check_plan(self, plan: StepPlan, oldest: tuple[Request, ...]) -> None:
        rows = plan.rows.tolist()
        assert plan.num_tokens <= self.budget
        assert len(rows) == len(set(rows)) <= self.max_num_seqs
        assert (plan.counts > 0).all()
        by_row = {request.row: request for request in self.scheduler.running}
        assert set(rows) <= set(by_row)
        for request in oldest:
            wants = request.num_computed < request.planned_len < request.max_len
            if request.row in rows or not wants:
                self._oldest_waited[request.request_id] = 0
            else:  # for what the steps in flight give back, and no longer
                self._oldest_waited[request.request_id] += 1
                assert self._oldest_waited[request.request_id] <= 2 * self.depth
        for join in plan.joins:
            request = by_row[join.row]
            if request.num_preemptions:
                before = self._relief_at_preemption[request.request_id]
                assert self._relief > before, "it came back to no more room than it left"

    def _apply(self) -> None:
        for update in self.scheduler.apply(self.device.run()):
            name = update.request_id
            assert name not in self.ended and name not in self.aborted, "it had ended"
            assert update.token_ids or update.finish
            self.outputs[name] += update.token_ids
            self._settled.add((name, self._requests[name].num_preemptions))
            if update.finish:
                self.ended[name] = update.finish
        self.scheduler.check()


def expected(prompt: list[int], max_len: int, stop_every: int = STOP_EVERY) -> list[int]:
    """What a request generates, whatever else runs."""
    tokens = list(prompt)
    while len(tokens) < max_len:
        tokens.append(next_token(tokens))
        if tokens[-1] % stop_every == 0:
            break
    return tokens[len(prompt) :]
