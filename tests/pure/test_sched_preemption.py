"""What the scheduler does when blocks run short."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv import KvCache
from octavo.program.program import KvLayout
from tests.support.sched_world import FULL, MIXED, WINDOW, World, expected

ENDLESS = 10**9


def _ideal(*lengths: tuple[int, int]) -> int:
    """Tokens that have to be computed if none is computed twice."""
    return sum(prompt + reply - 1 for prompt, reply in lengths)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("layout", [FULL, MIXED, WINDOW])
def test_two_long_requests_that_cannot_both_fit(layout: KvLayout, depth: int) -> None:
    """R6: the oldest finishes, then the other; each preemption is one event."""
    streams = []
    for spare in (200, 0, 1, 2, 3):
        blocks = KvCache(layout, 1, 8).most_blocks(39) + spare
        world = World(layout, blocks, depth, max_num_seqs=2, budget=8, stop_every=ENDLESS)
        for name in ("a", "b"):
            world.add(name, [ord(name)] * 20, 20)
        world.run()
        streams.append(world.outputs)
        assert list(world.ended) == ["a", "b"]
        events = list(world.scheduler.preemptions)
        assert len(events) == world.scheduler.num_preemptions <= 1
        assert all(event.request_id == "b" for event in events)
        lost = sum(event.num_tokens_lost for event in events)
        assert world.device.num_computed <= _ideal((20, 20), (20, 20)) + lost
    for name, tokens in streams[0].items():
        assert tokens == expected([ord(name)] * 20, 40, ENDLESS)
    assert all(outputs == streams[0] for outputs in streams)


@pytest.mark.parametrize("blocks", range(8, 13))
def test_blocks_that_a_window_returns_are_waited_for(blocks: int) -> None:
    """One step ahead a window group holds a chunk too much for a moment: that is no shortage."""
    world = World(WINDOW, blocks, max_model_len=512, stop_every=ENDLESS)
    world.add("a", [1] * 4, 100)
    world.add("b", [2] * 200, 20)
    world.run()
    assert world.scheduler.num_preemptions == 0
    assert world.device.num_computed == _ideal((4, 100), (200, 20))


def test_a_chunk_in_flight_is_no_reason_to_preempt() -> None:
    """a grows while b's prompt holds a chunk too much: b's windows give back what a needs."""
    world = World(MIXED, 50, budget=8, max_model_len=512, stop_every=ENDLESS)
    world.add("a", [1] * 4, 60)
    world.add("b", [2] * 100, 20)
    world.run()
    assert world.scheduler.num_preemptions == 0
    assert world.device.num_computed == _ideal((4, 60), (100, 20))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    layout=st.sampled_from([FULL, MIXED, WINDOW]),
    depth=st.integers(0, 3),
    budget=st.integers(4, 20),
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 15)), min_size=2, max_size=5),
    between=st.sets(st.integers(0, 40)),
    meanwhile=st.sets(st.integers(0, 40)),
)
def test_a_preemption_at_any_moment_changes_no_token(
    layout: KvLayout,
    depth: int,
    budget: int,
    lengths: list[tuple[int, int]],
    between: set[int],
    meanwhile: set[int],
) -> None:
    """Whatever the policy: tokens and results in flight reach the run that they belong to."""
    world = World(layout, 500, depth, budget=budget, stop_every=ENDLESS)
    for index, (prompt, reply) in enumerate(lengths):
        world.add(f"r{index}", [index] * prompt, reply)
    moment, moving = 0, True
    while moving:
        if moment in between:
            world.preempt()
        moving = world.step(world.preempt if moment in meanwhile else None)
        moment += 1
    world.run()
    for index, (prompt, reply) in enumerate(lengths):
        want = expected([index] * prompt, prompt + reply, ENDLESS)
        assert world.outputs[f"r{index}"] == want


def test_the_latest_stands_back_and_keeps_what_it_has() -> None:
    """b runs short first; a needs nothing of it, so nothing is computed twice."""
    world = World(num_blocks=9, max_num_seqs=2, stop_every=ENDLESS)
    world.add("a", [1] * 13, 4)  # four blocks at most
    world.add("b", [2] * 16, 18)  # nine in the end
    world.run()
    assert list(world.ended) == ["a", "b"]
    assert world.scheduler.num_preemptions == 0
    assert world.device.num_computed == _ideal((13, 4), (16, 18))


def test_victims_come_back_in_order_of_arrival() -> None:
    world = World(num_blocks=18, max_num_seqs=3, stop_every=ENDLESS)
    for name in ("a", "b", "c", "d"):
        world.add(name, [ord(name)] * 8, 40)
    world.run()
    victims = [event.request_id for event in world.scheduler.preemptions]
    assert victims[:2] == ["c", "b"]
    assert list(world.ended) == ["a", "b", "c", "d"]


def test_an_event_says_what_was_lost_and_won() -> None:
    world = World(num_blocks=8, depth=0, max_num_seqs=2, stop_every=ENDLESS)
    world.add("a", [1] * 8, 20)
    b = world.add("b", [2] * 8, 20)
    while not b.num_preemptions:
        world.step()
    (event,) = world.scheduler.preemptions
    assert event.request_id == "b"
    assert event.step == world.steps
    assert event.num_tokens_lost == len(b.prompt) + len(b.output) - 1
    assert event.num_blocks_won == 4
    world.run()


def test_admission_leaves_room_for_the_next_token_of_all() -> None:
    """a's next token takes the fourth block: b would have to give it back at once."""
    world = World(num_blocks=5, depth=0, stop_every=ENDLESS)
    a = world.add("a", [1] * 12, 2)
    b = world.add("b", [2] * 7, 4)
    world.step()
    assert (a.row, b.row) == (0, -1)
    world.run()
    assert world.scheduler.num_preemptions == 0
    assert list(world.ended) == ["a", "b"]


def test_nobody_is_admitted_past_one_who_waits_for_blocks() -> None:
    """b's next chunk waits for b's own window; c would fit into what is free until then."""
    world = World(WINDOW, 5, max_num_seqs=3, budget=7, stop_every=ENDLESS)
    world.add("a", [1] * 8, 20)
    b = world.add("b", [2] * 22, 8)
    c = world.add("c", [3] * 3, 8)
    while b.num_computed < len(b.prompt):
        assert c.row < 0
        assert world.step()
    world.run()
    assert world.scheduler.num_preemptions == 0


def test_a_last_token_needs_no_room_for_another() -> None:
    """Two prompts of two blocks that reply with one token each fit into four blocks at once."""
    world = World(num_blocks=4, stop_every=ENDLESS)
    for name in ("a", "b"):
        world.add(name, [ord(name)] * 8, 1)
    world.step()
    assert world.scheduler.num_running == 2
    world.run()
    assert world.steps == 1
