"""The block pool and the tables over it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv import BlockPool, BlockTable, KvCache
from octavo.program.program import KvGroup, KvLayout

_GROUPS = st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=1, max_size=3)


def _layout(windows: list[int | None], size: int) -> KvLayout:
    return KvLayout(tuple(KvGroup(w, (i,)) for i, w in enumerate(windows)), size, 1, 2)


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


def test_a_freed_block_is_the_first_to_be_used_again() -> None:
    """Pages that were touched are used before fresh ones are."""
    pool = BlockPool(100)
    for _ in range(50):
        taken = pool.allocate(3)
        assert taken is not None
        assert set(taken) == {0, 1, 2}
        pool.release(taken)


@pytest.mark.parametrize("times", [1, 2])
def test_a_block_is_released_once_per_reference(times: int) -> None:
    pool = BlockPool(2)
    taken = pool.allocate(1)
    assert taken is not None
    for _ in range(times - 1):
        pool.share(taken[0])
    for _ in range(times):
        pool.release(taken)
    with pytest.raises(AssertionError, match="once per reference"):
        pool.release(taken)
    with pytest.raises(AssertionError, match="only a used block"):
        pool.share(taken[0])


def test_check_finds_what_does_not_add_up() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(2)
    assert taken is not None
    pool.check(taken)
    for held in ([], taken[:1], [*taken, taken[0]], [*taken, 3]):
        with pytest.raises(AssertionError):
            pool.check(held)
    pool._free.append(pool._free[0])
    with pytest.raises(AssertionError, match="states"):
        pool.check(taken)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    windows=_GROUPS,
    size=st.sampled_from([1, 3, 4]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=25),
    late=st.integers(0, 2),
)
def test_a_table_holds_what_a_token_to_come_can_see(
    windows: list[int | None], size: int, counts: list[int], late: int
) -> None:
    """Against the definition: every position seen from now on, and nothing wholly behind it.

    late: steps whose results are not known yet.
    """
    kv = KvCache(_layout(windows, size), 1000, chunk=9)
    table, computed = kv.new_table(), [0]
    for count in counts:
        upto = computed[-1] + count
        before, grown = kv.num_used, kv.growth(table, upto)
        appended = kv.append(table, upto)
        assert appended is not None
        assert len(appended) == grown == kv.num_used - before
        for group, index, block in appended:
            assert table.blocks[group][index - table.first[group]] == block
        computed.append(upto)
        known = computed[max(0, len(computed) - 1 - late)]
        before, returned = kv.num_used, kv.unseen(table, known)
        kv.drop_unseen(table, known)
        assert before - kv.num_used == returned
        assert kv.unseen(table, known) == 0
        for group, window in enumerate(windows):
            first_seen = 0 if window is None else max(0, known - window + 1)
            assert table.first[group] == first_seen // size, "the block of the oldest key seen"
            assert (table.first[group] + len(table.blocks[group])) * size >= upto
        if late == 0:
            assert kv.num_used <= kv.most_blocks(upto)
        kv.check([table])
    kv.release(table)
    assert kv.num_used == 0
    kv.check([table])


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    windows=_GROUPS,
    size=st.sampled_from([1, 3, 4]),
    num_tokens=st.integers(1, 80),
    chunk=st.integers(1, 12),
    begin=st.integers(0, 80),
)
def test_still_needed_is_what_a_table_grows_by_at_most(
    windows: list[int | None], size: int, num_tokens: int, chunk: int, begin: int
) -> None:
    kv = KvCache(_layout(windows, size), 1000, chunk=chunk)
    table, computed = kv.new_table(), 0
    bound, base = None, 0
    while computed < num_tokens:
        if computed >= begin and bound is None:
            base = kv.num_used
            bound = base + kv.still_needed(table, computed, num_tokens)
        computed = min(num_tokens, computed + chunk)
        assert kv.append(table, computed) is not None
        if bound is not None:
            assert kv.num_used <= bound
        kv.drop_unseen(table, computed)


def test_a_group_that_is_short_leaves_every_group_as_it_was() -> None:
    kv = KvCache(_layout([None, 6], 4), 5, chunk=8)
    table, other = kv.new_table(), kv.new_table()
    assert kv.append(table, 8) is not None
    before = [list(blocks) for blocks in table.blocks]
    assert kv.append(table, 9) is None
    assert kv.append(other, 1) is None
    assert (table.blocks, table.capacity, kv.pool.num_free) == (before, 8, 1)
    kv.check([table, other])


@pytest.mark.parametrize("windows", [[None], [None, 6], [None, 6, 6]])
@pytest.mark.parametrize("blocks", [1, 2, 3, 10, 17])
def test_the_longest_that_fits(windows: list[int | None], blocks: int) -> None:
    kv = KvCache(_layout(windows, 4), blocks, chunk=5)
    assert kv.longest == max(n for n in range(200) if kv.most_blocks(n) <= blocks)
    assert kv.longest < 200


def test_windows_alone_bound_no_length() -> None:
    """Once the window and a chunk fit, blocks come back as fast as they are taken."""
    layout = _layout([6], 4)
    most = KvCache(layout, 1, chunk=5).most_blocks(1000)
    assert KvCache(layout, most - 1, chunk=5).longest == (most - 1) * 4
    kv = KvCache(layout, most, chunk=5)
    assert kv.longest > 10**6
    table = kv.new_table()
    for computed in range(5, 1000, 5):
        assert kv.append(table, computed) is not None
        kv.drop_unseen(table, computed)


def test_check_finds_a_table_that_lost_a_block() -> None:
    kv = KvCache(_layout([None, 6], 4), 20, chunk=8)
    table = kv.new_table()
    assert kv.append(table, 20) is not None
    kv.drop_unseen(table, 18)
    kv.check([table])
    for spoil in (_lose_a_block, _miss_a_drop, _shift_a_full_group):
        spoiled = BlockTable(
            [list(blocks) for blocks in table.blocks],
            list(table.first),
            table.capacity,
            table.next_drop,
        )
        spoil(spoiled)
        with pytest.raises(AssertionError):
            kv.check([spoiled])
    kv.check([table])


def _lose_a_block(table: BlockTable) -> None:
    table.blocks[1].pop()


def _miss_a_drop(table: BlockTable) -> None:
    table.next_drop += 1


def _shift_a_full_group(table: BlockTable) -> None:
    table.first[0] += 1
    table.first[1] -= 1
