"""The scheduler and the pool, driven against an honest simulated device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.errors import CapacityError, ContextLengthError, QueueFullError, RequestError
from octavo.base.sampling_params import SamplingParams
from octavo.base.step import Finish, StepPlan
from octavo.kv import BlockPool, KvCache
from octavo.program.program import KvGroup, KvLayout
from octavo.sched import Request, Scheduler, SchedulerConfig
from tests.support.fake_device import FakeDevice, next_token

FULL = KvLayout((KvGroup(None, (0,)),), 4, 1, 2)
MIXED = KvLayout((KvGroup(None, (0,)), KvGroup(6, (1,)), KvGroup(6, (2,))), 4, 1, 2)


@dataclass
class World:
    """A scheduler with `depth` steps ahead of an honest device, checked after every step."""

    layout: KvLayout = FULL
    num_blocks: int = 64
    depth: int = 1
    max_num_seqs: int = 4
    budget: int = 16
    max_model_len: int = 64
    queue: int = 1000
    outputs: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, Finish] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    flight: deque[StepPlan] = field(default_factory=deque)
    steps: int = 0

    def __post_init__(self) -> None:
        self.kv = KvCache(self.layout, self.num_blocks, self.budget)
        config = SchedulerConfig(self.max_num_seqs, self.budget, self.max_model_len, self.queue)
        self.scheduler = Scheduler(config, self.kv)
        self.device = FakeDevice(self.layout, self.num_blocks)
        self.requests: list[Request] = []

    def add(self, name: str, prompt: list[int], max_tokens: int | None = 8) -> Request:
        request = Request(
            name, np.array(prompt, np.int32), SamplingParams(max_tokens=max_tokens), ()
        )
        self.scheduler.add(request)
        self.requests.append(request)
        self.outputs[name] = []
        return request

    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        if name not in self.ended:
            self.aborted.add(name)
        self.scheduler.check()

    def step(self) -> bool:
        """One turn of the engine's loop; False when there is nothing left to do."""
        oldest = self.scheduler.running[:1]
        preempted = {id(request): request.num_preemptions for request in oldest}
        plan = self.scheduler.plan()
        self.scheduler.check()
        for request in oldest:
            assert request.num_preemptions == preempted[id(request)], "the oldest was preempted"
        if plan is None and not self.flight:
            assert not self.scheduler.has_work(), "there is work and nothing moves"
            return False
        if plan is not None:
            self.steps += 1
            assert plan.num_tokens <= self.budget
            assert len(plan.rows) == len(set(plan.rows.tolist())) <= self.max_num_seqs
            assert (plan.counts > 0).all()
            self.flight.append(plan)
        if plan is None or len(self.flight) > self.depth:
            self._apply()
        return True

    def _apply(self) -> None:
        for update in self.scheduler.apply(self.device.run(self.flight.popleft())):
            name = update.request_id
            assert name not in self.ended and name not in self.aborted, "it had ended"
            self.outputs[name] += update.token_ids
            if update.finish:
                self.ended[name] = update.finish
        self.scheduler.check()

    def run(self) -> None:
        while self.step():
            assert self.steps < 20_000, "no end"
        assert set(self.ended) | self.aborted == set(self.outputs)
        assert self.kv.num_used == 0
        assert self.kv.pool.num_free == self.num_blocks


def expected(prompt: list[int], max_len: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < max_len:
        tokens.append(next_token(tokens))
        if tokens[-1] % 11 == 0:
            break
    return tokens[len(prompt) :]


_WORK = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 20),  # max_tokens
        st.integers(0, 12),  # steps before it arrives
        st.one_of(st.none(), st.integers(0, 25)),  # steps until it is aborted
    ),
    min_size=1,
    max_size=12,
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    work=_WORK,
    layout=st.sampled_from([FULL, MIXED]),
    spare=st.integers(0, 20),
    depth=st.integers(0, 1),
    seqs=st.integers(1, 5),
    budget=st.integers(5, 40),
)
def test_whatever_arrives_ends_once_with_the_right_tokens(
    work: list[tuple[int, int, int, int | None]],
    layout: KvLayout,
    spare: int,
    depth: int,
    seqs: int,
    budget: int,
) -> None:
    kv = KvCache(layout, 10_000, budget)
    least = max(kv.most_blocks(prompt + most - 1) for prompt, most, _, _ in work)
    world = World(layout, least + spare, depth, seqs, budget)
    later = sorted(
        ((wait, index) for index, (_, _, wait, _) in enumerate(work)), key=lambda item: item[0]
    )
    prompts = {f"r{i}": [(7 * i + j) % 900 for j in range(work[i][0])] for i in range(len(work))}
    moment = 0
    while True:
        while later and later[0][0] <= moment:
            index = later.pop(0)[1]
            world.add(f"r{index}", prompts[f"r{index}"], work[index][1])
        for index, (_, _, wait, abort) in enumerate(work):
            if abort is not None and wait + abort == moment and f"r{index}" in world.outputs:
                world.abort(f"r{index}")
        moment += 1
        if not world.step() and not later:
            break
    world.run()
    for index, (prompt_len, most, _, _) in enumerate(work):
        name = f"r{index}"
        want = expected(prompts[name], min(prompt_len + most, world.max_model_len))
        got = world.outputs[name]
        assert got == (want if name in world.ended else want[: len(got)])


def test_a_tight_pool_changes_nothing_but_time() -> None:
    """R6: two long requests that cannot both fit: the oldest finishes, then the other."""
    streams = []
    for blocks in (200, 11):
        world = World(num_blocks=blocks, max_num_seqs=2, budget=8)
        for name in ("a", "b"):
            world.add(name, [ord(name)] * 20, 20)
        world.run()
        streams.append(world.outputs)
        events = list(world.scheduler.preemptions)
        assert len(events) == world.scheduler.num_preemptions
        assert all(event.request_id == "b" for event in events)
        assert len(events) <= 2
    assert streams[0] == streams[1]


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    """R1"""
    world = World(num_blocks=5, max_model_len=1000)
    with pytest.raises(CapacityError) as caught:
        world.add("x", [1] * 30)
    for number in ("5", "20", "30"):
        assert number in str(caught.value)
    assert caught.value.param == "prompt"
    with pytest.raises(CapacityError) as caught:
        world.add("x", [1] * 10, 30)
    assert caught.value.param == "max_tokens"
    request = world.add("open", [3] * 10, None)
    assert request.max_len == 21
    world.run()
    assert len(world.outputs["open"]) <= 11


def test_a_prompt_longer_than_the_context_is_refused_with_the_counts() -> None:
    world = World(max_model_len=16)
    with pytest.raises(ContextLengthError, match=r"16 tokens.*16"):
        world.add("x", [1] * 16)
    request = world.add("y", [1] * 15, 100)
    assert request.max_len == 16
    world.run()
    assert len(world.outputs["y"]) == 1


def test_the_queue_has_a_bound() -> None:
    world = World(queue=2)
    world.add("a", [1])
    world.add("b", [1])
    with pytest.raises(QueueFullError):
        world.add("c", [1])
    world.run()


def test_abort_is_idempotent_and_frees_at_once() -> None:
    world = World()
    world.add("a", [1] * 10, 50)
    world.step()
    assert world.kv.num_used > 0
    world.abort("a")
    world.abort("a")
    world.scheduler.abort("never")
    assert world.kv.num_used == 0
    assert world.kv.pool.num_fenced > 0, "the launched step may still write"
    world.run()


def test_a_refusal_leaves_no_trace() -> None:
    world = World(num_blocks=5)
    with pytest.raises(RequestError):
        world.add("x", [1] * 64)
    assert not world.scheduler.has_work()


def test_the_pool_fences_what_a_step_may_touch() -> None:
    pool = BlockPool(4)
    first = pool.allocate(3)
    assert first is not None
    assert pool.allocate(2) is None
    pool.launch(1)
    pool.release(first[:2])
    assert (pool.num_free, pool.num_fenced, pool.num_used) == (1, 2, 1)
    pool.check(first[2:])
    assert pool.allocate(2) is None
    pool.retire(1)
    assert pool.num_free == 3
    pool.share(first[2])
    pool.release([first[2]])
    assert pool.num_used == 1
    pool.release([first[2]])
    assert pool.num_free == 4
    assert pool.peak_used == 3
    pool.check([])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.data())
def test_the_pool_keeps_its_invariants(data: st.DataObject) -> None:
    pool = BlockPool(8)
    held: list[int] = []
    launched = retired = 0
    for _ in range(60):
        action = data.draw(st.sampled_from(["allocate", "release", "share", "launch", "retire"]))
        if action == "allocate":
            count = data.draw(st.integers(0, 4))
            taken = pool.allocate(count)
            assert (taken is None) == (count > pool.num_free + len(taken or ()))
            held += taken or []
        elif action == "release" and held:
            block = held.pop(data.draw(st.integers(0, len(held) - 1)))
            pool.release([block])
        elif action == "share" and held:
            block = data.draw(st.sampled_from(held))
            pool.share(block)
            held.append(block)
        elif action == "launch":
            launched += 1
            pool.launch(launched)
        elif action == "retire" and retired < launched:
            retired += 1
            pool.retire(retired)
        pool.check(held)
