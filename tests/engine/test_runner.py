"""The runner: plans in, tokens out; lengths on the device are the truth."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.api import SampleBatch, SampleOutput
from octavo.base.sampling_params import SamplingParams
from octavo.base.step import NOT_SAMPLED, Finish, RowJoin, StepPlan, StepResult
from octavo.runner import DeviceThread, Rows, Runner, TokenTable
from octavo.text import TokenBytes
from tests.support.paged_fake import PagedFake, expected_tokens

GREEDY = SamplingParams(temperature=0, max_tokens=None)
WIDTH, BLOCK = 64, 4


def make(tile: int = 16, groups: int = 1, **options: object) -> Runner:
    backend = PagedFake(block_size=BLOCK, groups=groups, num_blocks=512, **options)  # type: ignore[arg-type]
    return Runner(backend, Rows(8, WIDTH, groups, BLOCK), tile=tile)


def join(
    row: int,
    tokens: list[int],
    *,
    params: SamplingParams = GREEDY,
    prompt_len: int | None = None,
    max_len: int = WIDTH,
    eos: tuple[int, ...] = (),
) -> RowJoin:
    length = len(tokens) if prompt_len is None else prompt_len
    return RowJoin(row, np.array(tokens, np.int32), length, max_len, params, eos)


def blocks(*rows: int, groups: int = 1) -> np.ndarray:
    """All blocks of the rows, each its own."""
    per_row = WIDTH // BLOCK
    return np.array(
        [
            (row, g, i, (row * groups + g) * per_row + i)
            for row in rows
            for g in range(groups)
            for i in range(per_row)
        ],
        np.int32,
    ).reshape(-1, 4)


def plan(
    seq: int,
    counts: dict[int, int],
    *,
    joins: tuple[RowJoin, ...] = (),
    leaves: tuple[int, ...] = (),
    new: np.ndarray | None = None,
    samples: dict[int, bool] | None = None,
) -> StepPlan:
    return StepPlan(
        seq=seq,
        leaves=leaves,
        joins=joins,
        blocks=np.empty((0, 4), np.int32) if new is None else new,
        rows=np.array(list(counts), np.int32),
        counts=np.array(list(counts.values()), np.int32),
        samples=np.array([(samples or {}).get(row, True) for row in counts], np.bool_),
    )


def run_alone(runner: Runner, row: int, steps: int) -> list[StepResult]:
    return [runner.run(plan(100 + i, {row: 1})) for i in range(steps)]


def test_prompt_then_decode_equals_the_hash_of_the_context() -> None:
    runner = make()
    prompt = [5, 6, 7, 8, 9]
    first = runner.run(plan(0, {2: 5}, joins=(join(2, prompt),), new=blocks(2)))
    rest = run_alone(runner, 2, 6)
    got = [int(r.tokens[0]) for r in [first, *rest]]
    assert got == expected_tokens(prompt, 7)
    assert [int(r.num_computed[0]) for r in [first, *rest]] == list(range(5, 12))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("tile", [1, 3, 7, 16, 64])
@pytest.mark.parametrize("chunk", [1, 4, 30])
def test_chunks_and_tiles_do_not_change_tokens(tile: int, chunk: int, groups: int) -> None:
    runner = make(tile, groups)
    prompts = {0: list(range(1, 31)), 3: [9, 8], 5: list(range(40, 57))}
    joins = tuple(join(row, tokens) for row, tokens in prompts.items())
    new = blocks(*prompts, groups=groups)
    drawn: dict[int, list[int]] = {row: [] for row in prompts}
    for seq in range(40):
        known = {row: len(prompts[row]) + len(drawn[row]) for row in prompts}
        left = {row: known[row] - int(runner.rows.num_computed[row]) for row in prompts}
        if seq == 0:
            left = {row: len(tokens) for row, tokens in prompts.items()}
        result = runner.run(
            plan(
                seq,
                {row: min(chunk, left[row]) for row in prompts},
                joins=joins if seq == 0 else (),
                new=new if seq == 0 else None,
            )
        )
        for row, token in zip(result.rows.tolist(), result.tokens.tolist(), strict=True):
            if token != NOT_SAMPLED:
                drawn[row].append(token)
    for row, tokens in prompts.items():
        assert len(drawn[row]) >= 10
        assert drawn[row] == expected_tokens(tokens, len(drawn[row]))
    assert max(runner.backend.calls) <= tile  # type: ignore[attr-defined]


def test_a_row_that_ended_computes_nothing_in_the_step_ahead() -> None:
    runner = make()
    prompt = [1, 2, 3]
    eos = expected_tokens(prompt, 1)[0]
    first = runner.run(plan(0, {0: 3}, joins=(join(0, prompt, eos=(eos,)),), new=blocks(0)))
    assert first.finish[0] == Finish.STOP_TOKEN
    assert first.stop_reasons == {}
    ahead = runner.run(plan(1, {0: 1}))
    assert ahead.tokens[0] == NOT_SAMPLED
    assert ahead.finish[0] == Finish.RUNNING
    assert ahead.num_computed[0] == first.num_computed[0]


def test_counts_are_upper_bounds() -> None:
    runner = make()
    result = runner.run(plan(0, {0: 40}, joins=(join(0, [1, 2, 3]),), new=blocks(0)))
    assert result.num_computed[0] == 3
    assert result.tokens[0] == expected_tokens([1, 2, 3], 1)[0]


def test_stop_ids_end_the_row_and_say_which() -> None:
    runner = make()
    prompt = [1, 2, 3]
    stop = expected_tokens(prompt, 1)[0]
    params = SamplingParams(temperature=0, stop_token_ids=[90, stop])
    result = runner.run(plan(0, {0: 3}, joins=(join(0, prompt, params=params),), new=blocks(0)))
    assert result.finish[0] == Finish.STOP_TOKEN
    assert result.stop_reasons == {0: stop}


def test_an_id_of_another_row_does_not_stop_this_one() -> None:
    runner = make()
    token = expected_tokens([1, 2, 3], 1)[0]
    many = SamplingParams(temperature=0, stop_token_ids=[*list(range(20)), token])
    joins = (join(0, [9, 9], params=many), join(1, [1, 2, 3]))
    result = runner.run(plan(0, {0: 2, 1: 3}, joins=joins, new=blocks(0, 1)))
    assert result.tokens[1] == token
    assert result.finish[1] == Finish.RUNNING
    runner.run(plan(1, {}, leaves=(0,)))
    assert runner.rows.stop_width == 0


def test_length_ends_the_row() -> None:
    runner = make()
    runner.run(plan(0, {0: 3}, joins=(join(0, [1, 2, 3], max_len=5),), new=blocks(0)))
    result = runner.run(plan(1, {0: 1}))
    assert result.finish[0] == Finish.LENGTH
    assert runner.rows.num_tokens[0] == 5


def test_min_tokens_masks_stops() -> None:
    runner = make()
    prompt = [1, 2, 3]
    eos = expected_tokens(prompt, 1)[0]
    params = SamplingParams(temperature=0, min_tokens=2)
    joins = (join(0, prompt, params=params, eos=(eos,)),)
    result = runner.run(plan(0, {0: 3}, joins=joins, new=blocks(0)))
    assert result.finish[0] == Finish.RUNNING
    assert result.tokens[0] == (eos + 1) % 97


def letters() -> TokenTable:
    return TokenTable(TokenBytes([b"%c" % (33 + i) for i in range(90)]), [])


def test_stop_string_over_two_tokens_ends_the_row_in_that_step() -> None:
    runner = make()
    runner.set_token_table(letters())
    prompt = [3, 1, 4]
    drawn = expected_tokens(prompt, 6)
    text = [bytes([33 + t]).decode() if t < 90 else "" for t in drawn]
    stop = text[2] + text[3] + text[4]
    params = SamplingParams(temperature=0, stop=["never", stop])
    first = runner.run(plan(0, {1: 3}, joins=(join(1, prompt, params=params),), new=blocks(1)))
    results = [first, *run_alone(runner, 1, 5)]
    assert [int(r.finish[0]) for r in results] == [0, 0, 0, 0, Finish.STOP_STRING, 0]
    assert results[4].stop_reasons == {0: stop}
    assert results[5].tokens[0] == NOT_SAMPLED


def test_stop_string_goes_on_over_a_preemption() -> None:
    prompt = [3, 1, 4]
    drawn = expected_tokens(prompt, 6)
    text = [bytes([33 + t]).decode() if t < 90 else "" for t in drawn]
    params = SamplingParams(temperature=0, stop=text[2] + text[3] + text[4])
    runner = make()
    runner.set_token_table(letters())
    again = join(4, prompt + drawn[:4], params=params, prompt_len=3)
    result = runner.run(plan(0, {4: 7}, joins=(again,), new=blocks(4)))
    assert result.tokens[0] == drawn[4]
    assert result.finish[0] == Finish.STOP_STRING


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    prompt = [3, 1, 4]
    drawn = expected_tokens(prompt, 2)
    text = [bytes([33 + t]).decode() for t in drawn]
    runner = make()
    runner.set_token_table(letters())
    params = SamplingParams(temperature=0, stop=[text[0], text[1]], min_tokens=1)
    joins = (join(0, prompt, params=params),)
    results = [runner.run(plan(0, {0: 3}, joins=joins, new=blocks(0))), *run_alone(runner, 0, 1)]
    assert [int(r.finish[0]) for r in results] == [Finish.RUNNING, Finish.STOP_STRING]


def test_a_row_without_finite_logits_faults_alone() -> None:
    runner = make(nan_on=frozenset({13}))
    joins = (join(0, [1, 13]), join(1, [1, 2]))
    result = runner.run(plan(0, {0: 2, 1: 2}, joins=joins, new=blocks(0, 1)))
    assert result.finish.tolist() == [Finish.FAULT, Finish.RUNNING]
    assert "finite" in result.faults[0]
    assert result.tokens[1] == expected_tokens([1, 2], 1)[0]
    ahead = runner.run(plan(1, {0: 1, 1: 1}))
    assert ahead.tokens[0] == NOT_SAMPLED
    assert ahead.tokens[1] == expected_tokens([1, 2], 2)[1]


def test_a_row_that_breaks_forward_faults_alone() -> None:
    runner = make(tile=4, fail_on=frozenset({66}))
    joins = (join(0, [1, 2, 3, 4, 5, 66]), join(1, [1, 2]), join(2, [7, 8, 9]))
    result = runner.run(plan(0, {0: 6, 1: 2, 2: 3}, joins=joins, new=blocks(0, 1, 2)))
    assert result.finish.tolist() == [Finish.FAULT, 0, 0]
    assert "breaks the kernel" in result.faults[0]
    assert result.tokens[1:].tolist() == [
        expected_tokens([1, 2], 1)[0],
        expected_tokens([7, 8, 9], 1)[0],
    ]


def test_a_step_in_which_every_row_fails_raises() -> None:
    runner = make(fail_on=frozenset({66}))
    joins = (join(0, [66]), join(1, [66]))
    with pytest.raises(RuntimeError, match="breaks the kernel"):
        runner.run(plan(0, {0: 1, 1: 1}, joins=joins, new=blocks(0, 1)))
    ahead = runner.run(plan(1, {0: 1, 1: 1}))
    assert ahead.tokens.tolist() == [NOT_SAMPLED] * 2


def test_a_row_that_fails_alone_faults_and_the_step_does_not_raise() -> None:
    runner = make(fail_on=frozenset({66}))
    result = runner.run(plan(0, {0: 1}, joins=(join(0, [66]),), new=blocks(0)))
    assert result.finish.tolist() == [Finish.FAULT]
    assert "breaks the kernel" in result.faults[0]


def test_a_draw_that_fails_is_repeated_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make()
    draw = runner.backend.sample

    def sample(batch: SampleBatch) -> SampleOutput:
        if 1 in batch.rows:
            raise RuntimeError("row 1 cannot be drawn")
        return draw(batch)

    monkeypatch.setattr(runner.backend, "sample", sample)
    params = SamplingParams(temperature=0, logprobs=0)
    joins = (join(0, [1, 2]), join(1, [3]), join(2, [4, 5], params=params))
    result = runner.run(plan(0, {0: 2, 1: 1, 2: 2}, joins=joins, new=blocks(0, 1, 2)))
    assert result.finish.tolist() == [0, Finish.FAULT, 0]
    assert [int(result.tokens[i]) for i in (0, 2)] == [
        expected_tokens([1, 2], 1)[0],
        expected_tokens([4, 5], 1)[0],
    ]
    assert list(result.logprobs) == [2]
    alone = runner.run(plan(1, {1: 1}, leaves=(1,), joins=(join(1, [3]),)))
    assert alone.finish.tolist() == [Finish.FAULT]


def test_a_row_that_cannot_begin_faults_alone() -> None:
    runner = make()  # no token table
    params = SamplingParams(temperature=0, stop="x")
    joins = (join(0, [1, 2], params=params), join(1, [1, 2]))
    result = runner.run(plan(0, {0: 2, 1: 2}, joins=joins, new=blocks(0, 1)))
    assert result.finish.tolist() == [Finish.FAULT, Finish.RUNNING]
    assert "token table" in result.faults[0]
    runner.run(plan(1, {}, leaves=(0, 1)))
    good = runner.run(plan(2, {0: 2}, joins=(join(0, [1, 2]),)))
    assert good.tokens[0] == expected_tokens([1, 2], 1)[0]


def test_logprobs_are_reported_for_rows_that_asked() -> None:
    runner = make()
    params = SamplingParams(temperature=0, logprobs=2)
    joins = (join(0, [1, 2]), join(1, [1, 2], params=params))
    result = runner.run(plan(0, {0: 2, 1: 2}, joins=joins, new=blocks(0, 1)))
    assert list(result.logprobs) == [1]
    assert len(result.logprobs[1].top_ids) == 2


def test_planned_bytes_of_rows_are_the_bytes_taken() -> None:
    rows = Rows(8, WIDTH, 3, BLOCK)
    assert Rows.plan_bytes(8, WIDTH, 3, BLOCK) == rows.nbytes


def test_device_thread_runs_in_order_and_carries_errors() -> None:
    runner = make(fail_on=frozenset({66}))
    device = DeviceThread(runner.run)
    try:
        prompt = [1, 2]
        first = device.launch(plan(0, {0: 2}, joins=(join(0, prompt),), new=blocks(0)))
        second = device.launch(plan(1, {0: 1}))
        assert [int(first.result().tokens[0]), int(second.result().tokens[0])] == expected_tokens(
            prompt, 2
        )
        joins = (join(1, [66]), join(2, [66]))
        bad = device.launch(plan(2, {1: 1, 2: 1}, joins=joins, new=blocks(1, 2)))
        with pytest.raises(RuntimeError, match="breaks the kernel"):
            bad.result()
        assert (
            int(device.launch(plan(3, {0: 1})).result().tokens[0]) == expected_tokens(prompt, 3)[2]
        )
    finally:
        device.close()
