"""The scheduler, driven against an honest simulated device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.errors import CapacityError, ContextLengthError, QueueFullError, RequestError
from octavo.base.sampling_params import SamplingParams
from octavo.base.step import NOT_SAMPLED, Finish, StepPlan, StepResult, StepTimings
from octavo.kv import KvCache
from octavo.program.program import KvLayout
from octavo.sched import Request, Scheduler, SchedulerConfig, State
from tests.support.sched_world import FULL, MIXED, WINDOW, World, expected

_WORK = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 20),  # max_tokens
        st.one_of(st.just(0), st.integers(0, 12)),  # steps before it arrives
        st.one_of(st.none(), st.integers(0, 25)),  # steps until it is aborted
    ),
    min_size=1,
    max_size=12,
)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    work=_WORK,
    layout=st.sampled_from([FULL, MIXED, WINDOW]),
    spare=st.one_of(st.integers(0, 4), st.integers(0, 20)),
    depth=st.integers(0, 2),
    stop_every=st.sampled_from([11, 10**9]),
    seqs=st.integers(1, 5),
    budget=st.integers(5, 40),
)
def test_whatever_arrives_ends_once_with_the_right_tokens(
    work: list[tuple[int, int, int, int | None]],
    layout: KvLayout,
    spare: int,
    depth: int,
    stop_every: int,
    seqs: int,
    budget: int,
) -> None:
    """Odd requests are aborted while steps are in flight, even ones between steps."""
    kv = KvCache(layout, 10_000, budget)
    least = max(kv.most_blocks(prompt + most - 1) for prompt, most, _, _ in work)
    world = World(layout, least + spare, depth, seqs, budget, stop_every=stop_every)
    later = sorted(
        ((wait, index) for index, (_, _, wait, _) in enumerate(work)), key=lambda item: item[0]
    )
    prompts = {f"r{i}": [(7 * i + j) % 900 for j in range(work[i][0])] for i in range(len(work))}
    moment = 0

    def abort(odd: bool) -> None:
        for index, (_, _, wait, after) in enumerate(work):
            due = after is not None and wait + after == moment
            if due and f"r{index}" in world.outputs and index % 2 == odd:
                world.abort(f"r{index}")

    moving = True
    while moving or later:
        while later and later[0][0] <= moment:
            index = later.pop(0)[1]
            world.add(f"r{index}", prompts[f"r{index}"], work[index][1])
        abort(odd=False)
        moving = world.step(lambda: abort(odd=True))
        moment += 1
    world.run()
    for index, (prompt_len, most, _, _) in enumerate(work):
        name = f"r{index}"
        want = expected(prompts[name], min(prompt_len + most, world.max_model_len), stop_every)
        got = world.outputs[name]
        assert got == (want if name in world.ended else want[: len(got)])


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    """R1"""
    world = World(num_blocks=5, max_model_len=1000)
    with pytest.raises(CapacityError) as caught:
        world.add("x", [1] * 30)
    assert str(caught.value) == (
        "38 tokens (prompt 30) need 10 KV blocks and the pool has 5; "
        "the longest that fits is 21 tokens with the reply"
    )
    assert caught.value.param == "prompt"
    with pytest.raises(CapacityError) as caught:
        world.add("x", [1] * 10, 30)
    assert caught.value.param == "max_tokens"
    world.add("longest", [2] * 10, 11)
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


def _result(plan: StepPlan, tokens: list[int], computed: list[int], ended: Finish) -> StepResult:
    return StepResult(
        plan.seq,
        plan.rows,
        np.array(tokens, np.int32),
        np.array(computed, np.int32),
        np.full(len(plan.rows), ended, np.int8),
        StepTimings(0.0, 0.0, 0.0, 0.0),
    )


def _scheduler(*, blocks: int = 64, seqs: int = 4, budget: int = 16) -> Scheduler:
    return Scheduler(SchedulerConfig(seqs, budget, 64), KvCache(FULL, blocks, budget))


def _request(name: str, prompt_len: int, max_tokens: int = 8) -> Request:
    prompt = np.arange(prompt_len, dtype=np.int32)
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens), ())


def _planned(plan: StepPlan | None) -> list[tuple[int, int, bool]]:
    assert plan is not None
    columns = (plan.rows.tolist(), plan.counts.tolist(), plan.samples.tolist())
    return list(zip(*columns, strict=True))


def test_decoding_rows_come_first_then_chunks_then_who_waits() -> None:
    scheduler = _scheduler(budget=8)
    for name, length in (("a", 3), ("b", 20), ("c", 2)):
        scheduler.add(_request(name, length))
    assert _planned(scheduler.plan()) == [(0, 3, True), (1, 5, False)]
    # a decodes on a placeholder; b takes what is left; c has to wait.
    assert _planned(scheduler.plan()) == [(0, 1, True), (1, 7, False)]
    assert _planned(scheduler.plan()) == [(0, 1, True), (1, 7, False)]
    assert _planned(scheduler.plan()) == [(0, 1, True), (1, 1, True), (2, 2, True)]
    scheduler.check()


def test_nothing_is_planned_beyond_the_last_token() -> None:
    """The length is known in advance: no step is spent on a row that must have ended."""
    scheduler = _scheduler()
    scheduler.add(_request("a", 3, max_tokens=2))
    plans = [scheduler.plan(), scheduler.plan()]
    assert [_planned(plan) for plan in plans] == [[(0, 3, True)], [(0, 1, True)]]
    assert scheduler.plan() is None
    world = World(depth=1, stop_every=10**9)
    world.add("a", [1] * 5, 6)
    world.run()
    assert world.device.num_computed == 5 + 6 - 1


def test_a_late_result_finds_its_own_request() -> None:
    """An aborted request's row and id are used again while its step is still running."""
    scheduler = _scheduler(seqs=1)
    first, second = _request("a", 3), _request("a", 5)
    scheduler.add(first)
    old = scheduler.plan()
    scheduler.abort("a")
    scheduler.add(second)
    new = scheduler.plan()
    assert old is not None
    assert new is not None
    assert (new.leaves, [join.row for join in new.joins]) == ((0,), [0])
    assert scheduler.apply(_result(old, [7], [3], Finish.RUNNING)) == []
    scheduler.check()
    assert (first.state, first.output, second.output) == (State.FINISHED, [], [])
    updates = scheduler.apply(_result(new, [8], [5], Finish.RUNNING))
    assert [(update.request_id, update.token_ids) for update in updates] == [("a", [8])]
    scheduler.check()


@pytest.mark.parametrize("ended", [Finish.RUNNING, Finish.STOP_TOKEN])
def test_a_token_in_flight_survives_a_preemption(ended: Finish) -> None:
    scheduler = _scheduler(blocks=6)
    old, young = _request("old", 8, 11), _request("young", 5)
    scheduler.add(old)
    scheduler.add(young)
    scheduler.check()
    tokens = {0: 0, 1: 0}
    flight: list[StepPlan] = []
    while (plan := scheduler.plan()) is not None:
        assert not young.num_preemptions
        flight.append(plan)
        if len(flight) < 2:
            continue
        done = flight.pop(0)
        for row, count in zip(done.rows.tolist(), done.counts.tolist(), strict=True):
            tokens[row] += count
        drawn = [5 if sample else NOT_SAMPLED for sample in done.samples.tolist()]
        computed = [tokens[row] for row in done.rows.tolist()]
        scheduler.apply(_result(done, drawn, computed, Finish.RUNNING))
        scheduler.check()
    # The victim's blocks are behind the fence, so there was nothing to plan in this turn.
    scheduler.check()
    assert young.num_preemptions == 1
    had = len(young.output)
    assert (young.state, young.in_flight) == (State.WAITING, 1)
    done = flight.pop(0)
    size = len(done.rows)
    computed = [tokens[row] + 1 for row in done.rows.tolist()]
    updates = scheduler.apply(_result(done, [6] * size, computed, ended))
    scheduler.check()
    update = {update.request_id: update for update in updates}["young"]
    assert (update.token_ids, update.finish) == ([6], ended)
    assert young.output[had:] == [6]
    assert scheduler.num_waiting == (0 if ended else 1)


def test_a_row_that_fails_ends_alone() -> None:
    scheduler = _scheduler()
    for name in ("a", "b"):
        scheduler.add(_request(name, 3))
    plan = scheduler.plan()
    assert plan is not None
    result = _result(plan, [NOT_SAMPLED, 4], [3, 3], Finish.RUNNING)
    result.finish[0] = Finish.FAULT
    result.faults[0] = "its logits are not finite"
    first, second = scheduler.apply(result)
    scheduler.check()
    assert (first.finish, first.token_ids, first.fault) == (Finish.FAULT, [], result.faults[0])
    assert (second.finish, second.token_ids, second.fault) == (Finish.RUNNING, [4], None)
    assert scheduler.num_running == 1
