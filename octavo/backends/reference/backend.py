"""The reference backend: numpy, float32, the program run as it stands. It defines correct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import (
    BackendLimits,
    Float32,
    ForwardBatch,
    Int32,
    RowSampling,
    SampleBatch,
    SampleOutput,
    WeightSource,
)
from octavo.backends.reference.sampling import log_probabilities, sample_row
from octavo.base.step import TokenLogprobs
from octavo.program import ops as op
from octavo.program.ops import Op
from octavo.program.program import Program
from octavo.weights.quant import dequantize


def load(
    program: Program, weights: WeightSource, limits: BackendLimits, **_: Any
) -> ReferenceBackend:
    """Read every tensor and widen it to float32."""
    tensors = {
        tensor.name: dequantize(weights.read(tensor.name), weights.dtype(tensor.name), tensor.shape)
        for tensor in program.tensors
    }
    return ReferenceBackend(program, tensors, limits)


class ReferenceBackend:
    """See `Backend`. tensors: canonical name → float32."""

    name = "reference"
    isa = "numpy"

    def __init__(
        self, program: Program, tensors: Mapping[str, Float32], limits: BackendLimits
    ) -> None:
        self._program = program
        self._tensors = tensors
        self._limits = limits
        self._kv = np.zeros((limits.num_blocks, *program.kv.block_shape()), np.float32)
        self._hidden = np.zeros((limits.max_rows, program.spec.hidden_size), np.float32)
        self._rows = [RowSampling()] * limits.max_rows

    def set_row(self, row: int, sampling: RowSampling) -> None:
        self._rows[row] = sampling

    def forward(self, batch: ForwardBatch) -> None:
        buffers: dict[str, Float32] = {}
        for item in self._program.forward:
            self._forward_op(item, buffers, batch)

    def sample(self, batch: SampleBatch) -> SampleOutput:
        tokens = np.empty(len(batch.rows), np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        raw = self.logits(batch.rows)
        for i, row in enumerate(batch.rows):
            sampling = self._rows[row]
            history = batch.row_tokens[row, : batch.row_lens[row]]
            tokens[i] = sample_row(raw[i], sampling, history)
            if sampling.num_logprobs >= 0 and tokens[i] >= 0:
                logprobs[i] = log_probabilities(raw[i], int(tokens[i]), sampling.num_logprobs)
        return SampleOutput(tokens, logprobs)

    def logits(self, rows: Int32) -> Float32:
        buffers: dict[str, Float32] = {}
        for item in self._program.sample:
            if isinstance(item, op.LoadRows):
                buffers[item.out] = self._hidden[rows].copy()
            elif not isinstance(item, op.Sample):
                self._plain_op(item, buffers)
        last = self._program.sample[-1]
        assert isinstance(last, op.Sample)
        return buffers[last.logits]

    def memory(self) -> Mapping[str, int]:
        return {
            "weights": sum(tensor.nbytes for tensor in self._tensors.values()),
            "kv_pool": self._kv.nbytes,
            "hidden": self._hidden.nbytes,
        }

    def close(self) -> None:
        self._tensors = {}
        self._kv = self._kv[:0]

    def _forward_op(self, item: Op, buffers: dict[str, Float32], batch: ForwardBatch) -> None:
        if isinstance(item, op.Embed):
            scale = np.float32(item.scale)
            buffers[item.out] = self._tensors[item.weight][batch.tokens] * scale
        elif isinstance(item, op.Rope):
            buffers[item.x] = rotate(buffers[item.x], item, batch.positions)
        elif isinstance(item, op.KvStore):
            self._store(item, buffers, batch)
        elif isinstance(item, op.Attention):
            buffers[item.out] = self._attention(item, buffers[item.q], batch)
        elif isinstance(item, op.GatherRows):
            self._hidden[batch.gather_row] = buffers[item.x][batch.gather_token]
        else:
            self._plain_op(item, buffers)

    def _plain_op(self, item: Op, buffers: dict[str, Float32]) -> None:
        """Ops that need nothing but their buffers and weights."""
        if isinstance(item, op.RmsNorm):
            weight = self._tensors[item.weight]
            buffers[item.out] = rms_norm(buffers[item.x], weight, item)
        elif isinstance(item, op.Linear):
            out = buffers[item.x] @ self._tensors[item.weight].T
            buffers[item.out] = out if item.bias is None else out + self._tensors[item.bias]
        elif isinstance(item, op.ActMul):
            buffers[item.out] = activate(buffers[item.gate], item.act) * buffers[item.up]
        elif isinstance(item, op.Add):
            buffers[item.out] = buffers[item.a] + buffers[item.b]
        else:
            raise NotImplementedError(item.kind)

    def _store(self, item: op.KvStore, buffers: dict[str, Float32], batch: ForwardBatch) -> None:
        kv, size = self._program.kv, self._program.kv.block_size
        rows = np.repeat(batch.seq_row, np.diff(batch.seq_start))
        blocks = batch.block_tables[item.group, rows, batch.positions // size]
        entries = batch.positions % size
        for side, name in enumerate((item.k, item.v)):
            values = buffers[name].reshape(-1, kv.kv_heads, kv.head_dim)
            self._kv[blocks, item.layer, side, :, entries] = values

    def _attention(self, item: op.Attention, q: Float32, batch: ForwardBatch) -> Float32:
        out = np.empty_like(q)
        size = self._program.kv.block_size
        for i, row in enumerate(batch.seq_row):
            start, end = int(batch.seq_start[i]), int(batch.seq_start[i + 1])
            length = int(batch.seq_len[i])
            first_query = length - (end - start)
            first = 0 if item.window is None else max(0, first_query - item.window + 1)
            keys = np.arange(first, length)
            blocks = batch.block_tables[item.group, row, keys // size]
            cached = self._kv[blocks, item.layer, :, :, keys % size]  # [keys, 2, kv heads, dim]
            positions = np.arange(first_query, length)
            out[start:end] = attend(item, q[start:end], cached, positions, keys)
        return out


def rms_norm(x: Float32, weight: Float32, item: op.RmsNorm) -> Float32:
    """Over groups of `width` values; see `RmsNorm`."""
    groups = x.reshape(len(x), -1, item.width)
    mean = (groups * groups).mean(axis=-1, keepdims=True)
    scaled = groups / np.sqrt(mean + np.float32(item.eps)) * (weight + np.float32(item.offset))
    return np.asarray(scaled.reshape(x.shape), np.float32)


def rotate(x: Float32, item: op.Rope, positions: Int32) -> Float32:
    """Rotate pairs by position · inv_freq, angles in double precision; see `Rope`."""
    angles = positions[:, None].astype(np.float64) * np.asarray(item.inv_freq, np.float64)
    cos = np.cos(angles).astype(np.float32)[:, None]
    sin = np.sin(angles).astype(np.float32)[:, None]
    heads = x.reshape(len(x), item.heads, item.head_dim).copy()
    half = len(item.inv_freq)
    if item.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = a * cos - b * sin
    heads[..., second] = a * sin + b * cos
    return heads.reshape(x.shape)


def activate(x: Float32, act: str) -> Float32:
    """silu, or gelu in its tanh form."""
    if act == "silu":
        with np.errstate(over="ignore"):
            return np.asarray(x / (1 + np.exp(-x)), np.float32)
    assert act == "gelu_tanh"
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)), np.float32)


def attend(
    item: op.Attention,
    q: Float32,
    cached: Float32,
    positions: NDArray[np.int64],
    keys: NDArray[np.int64],
) -> Float32:
    """One sequence. q [n, heads · dim]; cached [keys, 2, kv heads, dim]; see `Attention`."""
    n, dim, share = len(q), item.head_dim, item.heads // item.kv_heads
    queries = q.reshape(n, item.kv_heads, share, dim)
    scores = np.einsum("nhsd,khd->hsnk", queries, cached[:, 0]) * np.float32(item.scale)
    hidden = keys[None, :] > positions[:, None]
    if item.window is not None:
        hidden |= keys[None, :] <= positions[:, None] - item.window
    scores = np.where(hidden, np.float32(-np.inf), scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("hsnk,khd->nhsd", weights, cached[:, 1])
    return np.asarray(out.reshape(q.shape), np.float32)
