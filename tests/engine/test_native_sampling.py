"""The native sampler against the reference's definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends import native
from octavo.backends.api import RowSampling, SampleBatch
from octavo.backends.native.backend import NativeBackend
from octavo.backends.reference.sampling import log_probabilities, sample_row
from tests.engine.test_ops import HERE
from tests.support.op_programs import Tensors, int32, limits, one_op_program, run_tokens

VOCAB = 1000
ROWS = 40
HISTORY = 30


def _ids(*values: int) -> NDArray[np.int32]:
    return int32(values)


CASES = {
    "greedy": RowSampling(),
    "plain": RowSampling(temperature=1.0, seed=5),
    "cold": RowSampling(temperature=0.2, seed=2**63 + 11),
    "hot": RowSampling(temperature=3.0, seed=1),
    "top_k": RowSampling(temperature=1.0, top_k=7, seed=9),
    "top_k_1": RowSampling(temperature=1.0, top_k=1, seed=9),
    "top_k_all": RowSampling(temperature=1.0, top_k=VOCAB + 5, seed=9),
    "top_k_many": RowSampling(temperature=1.5, top_k=600, seed=9),
    "flat_top_p": RowSampling(temperature=40.0, top_p=0.9, seed=12),
    "flat_top_p_masked": RowSampling(
        temperature=40.0, top_p=0.9, seed=12, bad_words=tuple(_ids(i) for i in range(0, 900, 3))
    ),
    "min_p_1": RowSampling(temperature=1.0, min_p=1.0, seed=3),
    "min_p_top_p": RowSampling(temperature=2.0, min_p=0.001, top_p=0.8, seed=3),
    "masked_top_k": RowSampling(temperature=1.0, top_k=40, allowed_ids=_ids(*range(990)), seed=3),
    "top_p": RowSampling(temperature=1.0, top_p=0.6, seed=4),
    "tiny_top_p": RowSampling(temperature=1.0, top_p=1e-6, seed=4),
    "min_p": RowSampling(temperature=1.3, min_p=0.05, seed=4),
    "all_three": RowSampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, seed=77),
    "penalties": RowSampling(
        temperature=0.9,
        repetition_penalty=1.4,
        presence_penalty=0.6,
        frequency_penalty=-0.4,
        prompt_len=12,
        seed=3,
    ),
    "greedy_penalties": RowSampling(repetition_penalty=1.8, frequency_penalty=1.0, prompt_len=12),
    "bias": RowSampling(
        temperature=1.0, bias_ids=_ids(3, 999), bias_values=np.array([8, 9], np.float32), seed=6
    ),
    "allowed": RowSampling(temperature=1.0, allowed_ids=_ids(1, 17, 512, 998), seed=8),
    "min_len": RowSampling(stop_ids=_ids(*range(500)), min_len=HISTORY + 1),
    "bad_word": RowSampling(
        bad_words=(_ids(5), _ids(7, 8), _ids(1, 2, 3)), temperature=0.7, seed=2
    ),
}


@pytest.fixture(scope="module")
def logits() -> NDArray[np.float32]:
    rng = np.random.default_rng(42)
    values = (4 * rng.standard_normal((ROWS, VOCAB))).astype(np.float32)
    values[1] = np.round(values[1])  # many ties
    values[2] = 0.0
    values[3] = np.linspace(-3e38, 3e38, VOCAB)  # differences beyond float32
    values[4, 7], values[4, 8] = 3e38, -3e38
    values[5] *= 1e-30
    return values


@pytest.fixture(scope="module", params=HERE)
def backend(logits: NDArray[np.float32], request: pytest.FixtureRequest) -> NativeBackend:
    """Each row's "logits" are a row of the embedding table."""
    program = one_op_program(VOCAB, VOCAB, [], "x", {"embed": logits.shape})
    tensors = Tensors({"embed": logits}, {})
    made = native.load(program, tensors, limits(ROWS), isa=str(request.param))
    assert np.array_equal(run_tokens(made, range(ROWS), ROWS), logits)
    return made


def _history() -> NDArray[np.int32]:
    rng = np.random.default_rng(1)
    return int32(rng.integers(0, 40, (ROWS, HISTORY + 2)))


def _sample(backend: NativeBackend, params: RowSampling) -> tuple[list[int], dict[int, object]]:
    for row in range(ROWS):
        backend.set_row(row, params)
    batch = SampleBatch(int32(range(ROWS)), _history(), np.full(ROWS, HISTORY, np.int32))
    output = backend.sample(batch)
    return output.tokens.tolist(), dict(output.logprobs)


@pytest.mark.parametrize("name", CASES)
def test_the_same_tokens_as_the_reference(
    name: str, backend: NativeBackend, logits: NDArray[np.float32]
) -> None:
    params = CASES[name]
    history = _history()[:, :HISTORY]
    expected = [sample_row(logits[row], params, history[row]) for row in range(ROWS)]
    assert _sample(backend, params)[0] == expected


def test_log_probabilities(backend: NativeBackend, logits: NDArray[np.float32]) -> None:
    params = RowSampling(temperature=2.0, top_p=0.9, seed=1, num_logprobs=20)
    tokens, found = _sample(backend, params)
    for row, token in enumerate(tokens):
        want, got = log_probabilities(logits[row], token, 20), found[row]
        assert got.rank == want.rank  # type: ignore[attr-defined]
        assert got.top_ids.tolist() == want.top_ids.tolist()  # type: ignore[attr-defined]
        np.testing.assert_allclose(got.top, want.top, atol=2e-5)  # type: ignore[attr-defined]
        assert abs(got.logprob - want.logprob) < 2e-5  # type: ignore[attr-defined]


def test_penalties_leave_nothing_behind(backend: NativeBackend) -> None:
    before = _sample(backend, CASES["plain"])[0]
    _sample(backend, CASES["penalties"])
    assert _sample(backend, CASES["plain"])[0] == before


def test_counts_that_grow_with_the_history_equal_counts_made_at_once(
    backend: NativeBackend, logits: NDArray[np.float32]
) -> None:
    """Token by token, then back to a shorter and another history, as after a preemption."""
    params = CASES["penalties"]
    history = _history()
    other = history.copy()
    other[:, 10:] = other[:, 10:] + 1
    backend.set_row(0, params)
    plan = [(history, n) for n in (1, 2, 12, 13, 14, 30)] + [(other, 20), (history, 5), (other, 31)]
    for tokens, length in plan:
        lens = np.full(ROWS, length, np.int32)
        got = backend.sample(SampleBatch(int32([0]), tokens, lens)).tokens[0]
        assert got == sample_row(logits[0], params, tokens[0, :length])


@pytest.mark.parametrize("seed", range(4))
def test_large_vocabularies_draw_as_the_reference(seed: int) -> None:
    vocab = 20_011
    rng = np.random.default_rng(seed)
    table = (2.5 * rng.standard_normal((8, vocab))).astype(np.float32)
    table[:, rng.integers(0, vocab, 100)] += 8
    table[1] = np.round(table[1])
    program = one_op_program(vocab, vocab, [], "x", {"embed": table.shape})
    backend = native.load(program, Tensors({"embed": table}, {}), limits(8))
    run_tokens(backend, range(8), 8)
    history, lens = np.zeros((8, 16), np.int32), np.full(8, 3, np.int32)
    kinds = (
        RowSampling(temperature=0.8),
        RowSampling(temperature=0.8, top_k=50),
        RowSampling(temperature=3.0, top_k=5000),
        RowSampling(temperature=1.0, top_p=0.95),
        RowSampling(temperature=9.0, top_p=0.95),
        RowSampling(temperature=1.0, min_p=0.02, top_p=0.9),
        RowSampling(temperature=2.0, top_k=3000, top_p=0.99, min_p=1e-5),
    )
    differ = 0
    for params in kinds:
        params = replace(params, seed=seed)
        for row in range(8):
            backend.set_row(row, params)
        got = backend.sample(SampleBatch(int32(range(8)), history, lens)).tokens.tolist()
        want = [sample_row(table[row], params, history[row, :3]) for row in range(8)]
        differ += sum(a != b for a, b in zip(got, want, strict=True))
    backend.close()
    # A draw that falls between two tokens may round to either.
    assert differ <= 1


def test_draws_follow_the_probabilities() -> None:
    """20,000 draws of four tokens: within five standard deviations of each probability."""
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    table = np.full((1, 64), -np.inf, np.float32)
    table[0, :] = -200.0
    table[0, [3, 20, 40, 63]] = np.log(weights)
    program = one_op_program(64, 64, [], "x", {"embed": table.shape})
    backend = native.load(program, Tensors({"embed": table}, {}), limits(1))
    run_tokens(backend, [0], 1)
    counts = np.zeros(64)
    history, lens = np.zeros((1, 1024), np.int32), np.zeros(1, np.int32)
    for seed in range(400):
        backend.set_row(0, RowSampling(temperature=1.0, seed=seed * 7919))
        for position in range(50):
            lens[0] = position
            counts[backend.sample(SampleBatch(int32([0]), history, lens)).tokens[0]] += 1
    backend.close()
    n = counts.sum()
    assert n == 20_000
    for token, p in zip([3, 20, 40, 63], weights, strict=True):
        assert abs(counts[token] - n * p) < 5 * np.sqrt(n * p * (1 - p))


def test_rows_that_cannot_be_sampled_say_so() -> None:
    table = np.zeros((4, 64), np.float32)
    table[0, 5], table[1, 6] = np.nan, np.inf
    program = one_op_program(64, 64, [], "x", {"embed": table.shape})
    backend = native.load(program, Tensors({"embed": table}, {}), limits(4))
    run_tokens(backend, range(4), 4)
    for row in range(3):
        backend.set_row(row, RowSampling())
    # What may be drawn is also what must not be: nothing survives.
    backend.set_row(3, RowSampling(allowed_ids=int32([9]), stop_ids=int32([9]), min_len=5))
    batch = SampleBatch(int32(range(4)), np.zeros((4, 8), np.int32), np.ones(4, np.int32))
    tokens = backend.sample(batch).tokens.tolist()
    backend.close()
    assert tokens == [-1, -1, 0, -1]
