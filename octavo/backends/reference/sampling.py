"""Drawing a token, in numpy: the definition that other backends follow.

Order (see `SamplingParams`): allowed ids, bad words, min_tokens, logit bias → repetition, frequency
and presence penalties → temperature → min-p → top-k → top-p over the survivors → draw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import Float32, Int32, RowSampling
from octavo.base.step import NOT_SAMPLED, TokenLogprobs

_NONE = np.float32(-np.inf)
_MASK32 = 0xFFFFFFFF


def philox_uniform(seed: int, position: int) -> float:
    """A uniform double in [0, 1) of 53 bits: Philox4x32-10 (Salmon et al., 2011).

    key = the 64-bit seed, counter = (position, 0, 0, 0), from the first two output words.
    """
    c = [position & _MASK32, 0, 0, 0]
    k = [seed & _MASK32, seed >> 32 & _MASK32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & _MASK32, a >> 32 ^ c[3] ^ k[1], a & _MASK32]
        k = [(k[0] + 0x9E3779B9) & _MASK32, (k[1] + 0xBB67AE85) & _MASK32]
    return ((c[0] >> 5) * 2.0**26 + (c[1] >> 6)) / 2.0**53


def masked(logits: Float32, row: RowSampling, history: Int32) -> Float32:
    """Logits after the masks and the bias; a copy."""
    out = logits.copy()
    if row.allowed_ids is not None:
        keep = np.zeros(len(out), np.bool_)
        keep[row.allowed_ids] = True
        out[~keep] = _NONE
    for word in row.bad_words:
        before = len(word) - 1
        tail = history[len(history) - before :]
        if before <= len(history) and np.array_equal(tail, word[:before]):
            out[word[before]] = _NONE
    if len(history) < row.min_len:
        out[row.stop_ids] = _NONE
    out[row.bias_ids] += row.bias_values
    return out


def penalised(logits: Float32, row: RowSampling, history: Int32) -> Float32:
    """Repetition counts prompt and output; frequency and presence only output. In place."""
    if row.repetition_penalty != 1.0:
        ids = np.unique(history)
        x, r = logits[ids], np.float32(row.repetition_penalty)
        with np.errstate(all="ignore"):
            logits[ids] = np.where(x > 0, x / r, x * r)
    if row.frequency_penalty or row.presence_penalty:
        ids, counts = np.unique(history[row.prompt_len :], return_counts=True)
        logits[ids] -= np.float32(row.frequency_penalty) * counts.astype(np.float32)
        logits[ids] -= np.float32(row.presence_penalty)
    return logits


def survivors(logits: Float32, row: RowSampling) -> Float32:
    """Weights exp(logit / T − top) of the tokens that min-p, top-k and top-p leave, else 0.

    All are 0 where a temperature near the end of float32 drives the largest logit out of range.
    """
    with np.errstate(all="ignore"):
        x = logits / np.float32(row.temperature)
        if not np.isfinite(x.max()):
            return np.zeros_like(x)
        weight = np.exp(x - x.max()).astype(np.float32)
    if row.min_p > 0:
        weight[weight < np.float32(row.min_p)] = 0
    if 0 < row.top_k < len(x):
        alive = x[weight > 0]
        if len(alive) > row.top_k:
            least = np.partition(alive, len(alive) - row.top_k)[len(alive) - row.top_k]
            weight[x < least] = 0
    if row.top_p < 1.0:
        order = np.argsort(-x, kind="stable")
        running = np.cumsum(weight[order].astype(np.float64))
        reached = int(np.searchsorted(running, np.float32(row.top_p) * running[-1]))
        least = x[order[min(reached, len(x) - 1)]]
        weight[x < least] = 0
    return np.asarray(weight, np.float32)


def draw(weight: Float32, u: float) -> int:
    """The first id whose running weight exceeds u · total."""
    running: NDArray[np.float64] = np.cumsum(weight.astype(np.float64))
    index = int(np.searchsorted(running, u * running[-1], side="right"))
    return index if index < len(weight) else int(np.flatnonzero(weight)[-1])


def sample_row(logits: Float32, row: RowSampling, history: Int32) -> int:
    """The drawn token, or NOT_SAMPLED where logits are not finite or nothing survives.

    logits: float32 [vocab], raw. history: int32, the row's tokens so far.
    """
    if not np.isfinite(logits).all():
        return NOT_SAMPLED
    x = penalised(masked(logits, row, history), row, history)
    if np.isnan(x).any() or not (x > _NONE).any():
        return NOT_SAMPLED
    if np.float32(row.temperature) == 0:
        return int(x.argmax())
    weight = survivors(x, row)
    return draw(weight, philox_uniform(row.seed, len(history))) if weight.any() else NOT_SAMPLED


def log_probabilities(logits: Float32, token: int, count: int) -> TokenLogprobs:
    """Of the drawn token and of the `count` most likely, from the raw logits."""
    wide = logits.astype(np.float64)
    top = wide.max()
    log_sum = top + np.log(np.exp(wide - top).sum())
    order = np.lexsort((np.arange(len(logits)), -logits))[:count].astype(np.int32)
    return TokenLogprobs(
        logprob=float(wide[token] - log_sum),
        rank=1 + int((logits > logits[token]).sum()),
        top_ids=order,
        top=(wide[order] - log_sum).astype(np.float32),
    )
