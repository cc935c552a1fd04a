"""Programs of one op, to compare backends op by op.

forward: embed (float32 table: row t is token t's input) → the op → gather
sample:  load → sample;  `logits` of such a program returns the gathered rows as they are
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import Backend, BackendLimits, ForwardBatch
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec
from octavo.program import ops as op
from octavo.program.ops import Buffer, Op, Per
from octavo.program.program import KvGroup, KvLayout, Program, TensorSpec
from octavo.weights.quant import quantize

Float32 = NDArray[np.float32]


@dataclass
class Tensors:
    """A WeightSource over float32 arrays, held in the formats named."""

    arrays: Mapping[str, Float32]
    formats: Mapping[str, str]
    raw: dict[str, NDArray[np.uint8]] | None = None

    def dtype(self, name: str) -> str:
        return self.formats.get(name, "f32")

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def read(self, name: str) -> NDArray[np.uint8]:
        return quantize(self.arrays[name], self.dtype(name))


def one_op_program(
    width: int,
    out_width: int,
    ops: Sequence[Op],
    out: str,
    tensors: Mapping[str, tuple[int, ...]],
    *,
    buffers: Sequence[Buffer] = (),
    kv: KvLayout | None = None,
    heads: int = 1,
) -> Program:
    """Embeds into "x" [n, width], runs `ops`, gathers `out` [n, out_width]."""
    layout = kv or KvLayout((KvGroup(None, (0,)),), 16, 1, 2)
    spec = ModelSpec(
        family="test",
        vocab_size=out_width,
        hidden_size=out_width,
        num_heads=heads,
        num_kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        intermediate_size=1,
        max_position=4096,
        norm_eps=1e-5,
        norm_offset=0.0,
        activation="silu",
        qkv_bias=False,
        qk_norm=False,
        post_norms=False,
        embed_scale=1.0,
        attn_scale=1.0,
        tie_embeddings=True,
        layers=(LayerSpec(None, RopeSpec(1e4, 2, False)),),
    )
    return Program(
        spec=spec,
        kv=layout,
        buffers=(
            Buffer("x", Per.TOKEN, width),
            *buffers,
            Buffer("last", Per.ROW, out_width),
        ),
        forward=(op.Embed("x", "embed", 1.0), *ops, op.GatherRows(out)),
        sample=(op.LoadRows("last"), op.Sample("last")),
        tensors=tuple(TensorSpec(name, shape) for name, shape in tensors.items()),
    )


def limits(rows: int, *, num_blocks: int = 64, threads: int = 2, tile: int = 256) -> BackendLimits:
    return BackendLimits(
        max_rows=rows,
        max_len=1024,
        num_blocks=num_blocks,
        tile=tile,
        sample_rows=16,
        threads=threads,
    )


def int32(values: object) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, np.int32)


def run_tokens(backend: Backend, tokens: Sequence[int], max_rows: int) -> Float32:
    """Each token as a sequence of its own on its own row; the outputs, in order."""
    n = len(tokens)
    tables = np.arange(max_rows, dtype=np.int32).reshape(1, max_rows, 1).repeat(64, axis=2)
    batch = ForwardBatch(
        tokens=int32(tokens),
        positions=np.zeros(n, np.int32),
        seq_start=int32(range(n + 1)),
        seq_row=int32(range(n)),
        seq_len=np.ones(n, np.int32),
        block_tables=np.ascontiguousarray(tables),
        gather_token=int32(range(n)),
        gather_row=int32(range(n)),
    )
    backend.forward(batch)
    return backend.logits(int32(range(n)))
