"""The reference backend's own definitions, against formulas written another way."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.api import RowSampling
from octavo.backends.reference.backend import attend, rotate
from octavo.backends.reference.sampling import (
    draw,
    masked,
    penalised,
    philox_uniform,
    sample_row,
    survivors,
)
from octavo.program import ops as op

Float32 = NDArray[np.float32]


@pytest.mark.parametrize("window", [None, 1, 5])
def test_attention_is_the_naive_double_loop(window: int | None) -> None:
    rng = np.random.default_rng(0)
    heads, kv_heads, dim, before, n = 6, 2, 8, 7, 5
    item = op.Attention("y", "q", 0, 0, heads, kv_heads, dim, 0.3, window)
    q = rng.standard_normal((n, heads * dim)).astype(np.float32)
    total = before + n
    cached = rng.standard_normal((total, 2, kv_heads, dim)).astype(np.float32)
    got = attend(item, q, cached, np.arange(before, total), np.arange(total))
    for i in range(n):
        position = before + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            query = q[i, head * dim : (head + 1) * dim]
            keys = cached[first : position + 1, :, head // 3]
            scores = np.array([query @ key * 0.3 for key in keys[:, 0]])
            weights = np.exp(scores - scores.max())
            want = (weights[:, None] * keys[:, 1]).sum(0) / weights.sum()
            np.testing.assert_allclose(got[i, head * dim : (head + 1) * dim], want, rtol=2e-5)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_is_a_complex_rotation(interleaved: bool) -> None:
    rng = np.random.default_rng(1)
    frequencies = (1.0, 0.1, 0.01)
    item = op.Rope("x", 2, 6, frequencies, interleaved)
    x = rng.standard_normal((4, 12)).astype(np.float32)
    positions = np.array([0, 1, 50, 4000], np.int32)
    got = rotate(x, item, positions).reshape(4, 2, 6)
    heads = x.reshape(4, 2, 6)
    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    for (a, b), frequency in zip(pairs, frequencies, strict=True):
        turned = (heads[..., a] + 1j * heads[..., b]) * np.exp(1j * frequency * positions)[:, None]
        np.testing.assert_allclose(got[..., a], turned.real, atol=1e-5)
        np.testing.assert_allclose(got[..., b], turned.imag, atol=1e-5)


def test_philox_known_answer() -> None:
    """Philox4x32-10 of counter 0 under key 0 begins 6627e8d5 e169c58d (Random123's vectors)."""
    words = (0x6627E8D5, 0xE169C58D)
    assert philox_uniform(0, 0) == ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53
    assert philox_uniform(1, 0) != philox_uniform(0, 0) != philox_uniform(0, 1)
    draws = [philox_uniform(2**64 - 1, i) for i in range(4000)]
    assert 0 <= min(draws) < max(draws) < 1
    assert abs(np.mean(draws) - 0.5) < 0.03


L = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05])).astype(np.float32)

SURVIVORS = [
    (RowSampling(temperature=1.0), {0, 1, 2, 3, 4}),
    (RowSampling(temperature=1.0, top_k=2), {0, 1}),
    (RowSampling(temperature=1.0, top_p=0.5), {0, 1}),
    (RowSampling(temperature=1.0, top_p=0.39), {0}),
    (RowSampling(temperature=1.0, min_p=0.3), {0, 1, 2}),
    # min-p first (drops 4), then top-k, then top-p over what they left, renormalised:
    # 0.4 / 0.85 = 0.47 < 0.5 ≤ 0.82
    (RowSampling(temperature=1.0, min_p=0.2, top_k=3, top_p=0.5), {0, 1}),
    (RowSampling(temperature=1.0, min_p=0.2, top_k=3, top_p=0.46), {0}),
    # Temperature comes before min-p: at T = 4 the smallest is 0.59 of the largest.
    (RowSampling(temperature=4.0, min_p=0.55), {0, 1, 2, 3, 4}),
    (RowSampling(temperature=0.25, min_p=0.05), {0, 1}),
]


@pytest.mark.parametrize(("row", "left"), SURVIVORS)
def test_who_survives(row: RowSampling, left: set[int]) -> None:
    """R7: one documented order."""
    assert set(np.flatnonzero(survivors(L, row)).tolist()) == left


def _plain_probabilities(x: Float32, row: RowSampling) -> NDArray[np.float64]:
    """The documented order in float64, one list at a time: min-p, then top-k, then top-p."""
    p = np.exp(x.astype(np.float64) / row.temperature)
    p /= p.sum()
    kept = [i for i in range(len(p)) if p[i] >= row.min_p * p.max()]
    kept.sort(key=lambda i: -p[i])
    kept = kept[: row.top_k] if row.top_k else kept
    total, running = sum(p[i] for i in kept), 0.0
    nucleus: list[int] = []
    for i in kept:
        if nucleus and running >= row.top_p * total:
            break
        nucleus.append(i)
        running += p[i]
    out = np.zeros(len(p))
    out[nucleus] = p[nucleus] / p[nucleus].sum()
    return out


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [
    (0, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.05), (12, 0.9, 0.02), (3, 0.5, 0.3),
])  # fmt: skip
def test_the_probabilities_after_every_cut(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """R7: not only who is left, but with which probability; and that is what is drawn."""
    x = (2 * np.random.default_rng(5).standard_normal(50)).astype(np.float32)
    row = RowSampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=9)
    weight = survivors(x, row).astype(np.float64)
    want = _plain_probabilities(x, row)
    assert set(np.flatnonzero(weight)) == set(np.flatnonzero(want))
    np.testing.assert_allclose(weight / weight.sum(), want, rtol=1e-5)
    bounds = np.cumsum(want)
    checked = 0
    for position in range(1, 301):
        u = philox_uniform(9, position)
        if np.abs(bounds - u).min() > 1e-6:  # float32 weights may fall on either side
            token = sample_row(x, row, np.zeros(position, np.int32))
            assert token == int(np.searchsorted(bounds, u, side="right"))
            checked += 1
    assert checked > 290


def test_ties_are_kept() -> None:
    x = np.zeros(6, np.float32)
    assert (survivors(x, RowSampling(temperature=1.0, top_k=2)) > 0).all()
    assert (survivors(x, RowSampling(temperature=1.0, top_p=0.3)) > 0).all()


def test_penalties_count_what_they_should() -> None:
    """R8: repetition counts prompt and output; presence and frequency only output."""
    history = np.array([1, 1, 2, 3, 3, 3], np.int32)  # prompt: 1 1 2
    x = np.array([1, 2, -2, 4, 5], np.float32)
    repetition = penalised(x.copy(), RowSampling(repetition_penalty=2.0, prompt_len=3), history)
    assert repetition.tolist() == [1, 1, -4, 2, 5]
    output = RowSampling(presence_penalty=0.5, frequency_penalty=0.25, prompt_len=3)
    assert penalised(x.copy(), output, history).tolist() == [1, 2, -2, 4 - 0.75 - 0.5, 5]


def test_masks_come_first() -> None:
    row = RowSampling(
        allowed_ids=np.array([0, 1, 2], np.int32),
        bad_words=(np.array([2], np.int32), np.array([7, 1], np.int32)),
        stop_ids=np.array([0], np.int32),
        min_len=3,
        bias_ids=np.array([1, 4], np.int32),
        bias_values=np.array([2, 99], np.float32),
    )
    history = np.array([5, 7], np.int32)
    assert masked(L, row, history).tolist() == [-np.inf] * 5
    longer = np.array([5, 6, 7, 6], np.int32)
    found = masked(L, row, longer)
    assert found[0] == L[0]
    assert found[1] == L[1] + 2
    assert (found[2:] == -np.inf).all()


def test_draw_is_the_inverse_of_the_running_sum() -> None:
    weight = np.array([0, 1, 0, 3, 0], np.float32)
    assert [draw(weight, u) for u in (0.0, 0.2499, 0.25, 0.9999)] == [1, 1, 3, 3]


def test_what_cannot_be_sampled() -> None:
    history = np.zeros(1, np.int32)
    assert sample_row(np.array([0, np.nan], np.float32), RowSampling(), history) == -1
    only = RowSampling(allowed_ids=np.array([1], np.int32), bad_words=(np.array([1], np.int32),))
    assert sample_row(np.zeros(3, np.float32), only, history) == -1
    tiny = RowSampling(temperature=1e-42)  # drives the logits out of float32
    assert sample_row(np.array([1, 9], np.float32), tiny, history) == -1
    zero = RowSampling(temperature=1e-60)  # 0 in float32: greedy
    assert sample_row(np.array([1, 9], np.float32), zero, history) == 1
    no_penalty = RowSampling(repetition_penalty=1e-60, allowed_ids=np.array([1], np.int32))
    assert sample_row(np.array([1, 9], np.float32), no_penalty, history) == -1
    assert sample_row(np.zeros(3, np.float32), RowSampling(), history) == 0
