"""Whole models on the reference backend against a dense float64 forward pass without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.api import BackendLimits, ForwardBatch, RowSampling, SampleBatch
from octavo.backends.reference import ReferenceBackend, load
from octavo.engine.model import OpenModel, open_model
from tests.support.tiny_models import tiny_gemma3_gguf, tiny_llama_gguf

Double = NDArray[np.float64]
BLOCK, ROWS, LENGTH = 4, 3, 64
WINDOW = 8


def llama(path: Path) -> Path:
    return tiny_llama_gguf(path, "f32", tied=False)


def gemma(path: Path) -> Path:
    return tiny_gemma3_gguf(path, "f32", window=WINDOW)


def _norm(x: Double, weight: Double, eps: float) -> Double:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight)


def _turn(x: Double, theta: float, interleaved: bool) -> Double:
    """Rotate [n, heads, dim] by position as complex numbers."""
    n, _, dim = x.shape
    angle = np.arange(n)[:, None, None] * theta ** (-2 * np.arange(dim // 2) / dim)
    pairs = np.stack([x[..., ::2], x[..., 1::2]] if interleaved else np.split(x, 2, axis=-1))
    turned = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angle)
    parts = [turned.real, turned.imag]
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)


def dense_logits(path: Path, tokens: Sequence[int]) -> Double:
    """[n, vocab] of a GGUF of float32, straight from the files' names and metadata."""
    model = open_model(path, block_size=BLOCK)
    file, meta = model.checkpoint, model.checkpoint.metadata
    arch = meta["general.architecture"]
    gemma3 = arch == "gemma3"
    heads, kv_heads = meta[f"{arch}.attention.head_count"], meta[f"{arch}.attention.head_count_kv"]
    eps = meta[f"{arch}.attention.layer_norm_rms_epsilon"]

    def w(name: str) -> Double:
        info = file.tensors[f"{name}.weight"]
        return file.read(info.name).view(np.float32).reshape(info.shape).astype(np.float64)

    x = w("token_embd")[list(tokens)]
    n = len(tokens)
    if gemma3:
        x = x * np.sqrt(x.shape[1])
    age = np.arange(n)[:, None] - np.arange(n)[None, :]
    for i in range(meta[f"{arch}.block_count"]):
        local = gemma3 and i % 6 != 5
        theta = 10_000.0 if local or not gemma3 else 1_000_000.0
        y = _norm(x, w(f"blk.{i}.attn_norm"), eps)
        q, k, v = ((y @ w(f"blk.{i}.attn_{p}").T).reshape(n, h, -1)
                   for p, h in zip("qkv", (heads, kv_heads, kv_heads), strict=True))  # fmt: skip
        if gemma3:
            q, k = (_norm(t, w(f"blk.{i}.attn_{p}_norm"), eps) for t, p in ((q, "q"), (k, "k")))
        q, k = _turn(q, theta, not gemma3), _turn(k, theta, not gemma3)
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores[:, (age < 0) | (local & (age >= WINDOW))] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
        y = y @ w(f"blk.{i}.attn_output").T
        x = x + (_norm(y, w(f"blk.{i}.post_attention_norm"), eps) if gemma3 else y)
        y = _norm(x, w(f"blk.{i}.ffn_norm"), eps)
        g = y @ w(f"blk.{i}.ffn_gate").T
        tanh = np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))
        g = g * (1 + tanh) / 2 if gemma3 else g / (1 + np.exp(-g))
        y = (g * (y @ w(f"blk.{i}.ffn_up").T)) @ w(f"blk.{i}.ffn_down").T
        x = x + (_norm(y, w(f"blk.{i}.post_ffw_norm"), eps) if gemma3 else y)
    head = w("output" if "output.weight" in file.tensors else "token_embd")
    return np.asarray(_norm(x, w("output_norm"), eps) @ head.T)


class Driver:
    """Feeds chunks of several rows through shuffled block tables."""

    def __init__(self, model: OpenModel) -> None:
        groups, per_row = len(model.program.kv.groups), LENGTH // BLOCK
        blocks = np.random.default_rng(3).permutation(groups * ROWS * per_row)
        self.tables = blocks.reshape(groups, ROWS, per_row).astype(np.int32)
        limits = BackendLimits(max_rows=ROWS, max_len=LENGTH, num_blocks=blocks.size)
        self.backend: ReferenceBackend = load(model.program, model.weights, limits)
        self.done = [0] * ROWS

    def feed(self, chunks: dict[int, Sequence[int]]) -> None:
        """One call: each row's next tokens; every row's last becomes its hidden state."""
        tokens: list[int] = []
        positions: list[int] = []
        starts = [0]
        for row, chunk in chunks.items():
            tokens += chunk
            positions += range(self.done[row], self.done[row] + len(chunk))
            self.done[row] += len(chunk)
            starts.append(len(tokens))

        def i32(values: Sequence[int]) -> NDArray[np.int32]:
            return np.array(values, np.int32)

        rows = i32(list(chunks))
        lengths = i32([self.done[row] for row in chunks])
        last = i32([end - 1 for end in starts[1:]])
        self.backend.forward(
            ForwardBatch(
                i32(tokens), i32(positions), i32(starts), rows, lengths, self.tables, last, rows
            )
        )

    def logits(self, row: int) -> NDArray[np.float32]:
        return np.asarray(self.backend.logits(np.array([row], np.int32))[0])


@pytest.mark.parametrize("make", [llama, gemma])
def test_chunks_of_several_rows_are_the_dense_pass(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    """Contexts several windows long, cut anywhere, in scattered blocks, beside another row."""
    path = make(tmp_path / "m.gguf")
    model = open_model(path, block_size=BLOCK)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, model.program.spec.vocab_size, 40).tolist() for _ in range(2))
    want_a, want_b = dense_logits(path, a), dense_logits(path, b)
    driver = Driver(model)
    driver.feed({0: a[:1], 2: b[:13]})
    driver.feed({2: b[13:14], 0: a[1:27]})
    np.testing.assert_allclose(driver.logits(2), want_b[13], atol=2e-4)
    driver.feed({0: a[27:], 2: b[14:]})
    np.testing.assert_allclose(driver.logits(0), want_a[39], atol=2e-4)
    np.testing.assert_allclose(driver.logits(2), want_b[39], atol=2e-4)


def test_sample_draws_from_the_stored_rows_and_reports_logprobs(tmp_path: Path) -> None:
    model = open_model(llama(tmp_path / "m.gguf"), block_size=BLOCK)
    driver = Driver(model)
    driver.feed({1: [5, 6, 7], 0: [9, 8]})
    driver.backend.set_row(0, RowSampling())
    driver.backend.set_row(1, RowSampling(num_logprobs=3))
    history = np.zeros((ROWS, LENGTH), np.int32)
    lengths = np.array([2, 3, 0], np.int32)
    out = driver.backend.sample(SampleBatch(np.array([1, 0], np.int32), history, lengths))
    assert out.tokens.tolist() == [driver.logits(1).argmax(), driver.logits(0).argmax()]
    assert list(out.logprobs) == [0]
    found = out.logprobs[0]
    raw = driver.logits(1).astype(np.float64)
    log_p = raw - np.log(np.exp(raw).sum())
    assert found.rank == 1
    np.testing.assert_allclose(found.logprob, log_p.max(), atol=1e-5)
    np.testing.assert_allclose(found.top, np.sort(log_p)[::-1][:3], atol=1e-5)
    assert found.top_ids.tolist() == np.argsort(-raw, kind="stable")[:3].tolist()


def test_memory_is_told_and_given_back(tmp_path: Path) -> None:
    model = open_model(llama(tmp_path / "m.gguf"), block_size=BLOCK)
    driver = Driver(model)
    told = driver.backend.memory()
    assert told["kv_pool"] == driver.tables.size * model.program.kv.block_bytes("float32")
    assert told["weights"] == model.checkpoint.nbytes
    driver.backend.close()
    driver.backend.close()
    assert driver.backend.memory()["weights"] == 0
