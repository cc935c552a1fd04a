"""A program: ops in order over declared buffers, the tensors they need, and the KV it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.models.spec import ModelSpec
from octavo.program.ops import Buffer, Op


@dataclass(frozen=True)
class KvGroup:
    """Layers whose blocks live and die together. window None: full attention."""

    window: int | None
    layers: tuple[int, ...]


# Bytes per cached value, and per scale that an entry of a head has.
KV_DTYPES = {"float32": (4, 0), "bfloat16": (2, 0), "int8": (1, 4)}


@dataclass(frozen=True)
class KvLayout:
    """How KV lies in memory: one array, block-major.

        kv[block][layer in group][0: k, 1: v][kv head][entry in block][head_dim]

    Every group has the same number of layers (the greatest common divisor of the counts of full
    and of window layers), so all groups' blocks have one size and share one pool.
    """

    groups: tuple[KvGroup, ...]
    block_size: int
    kv_heads: int
    head_dim: int

    @property
    def layers_per_group(self) -> int:
        return len(self.groups[0].layers)

    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.layers_per_group, 2, self.kv_heads, self.block_size, self.head_dim)

    def block_bytes(self, dtype: str) -> int:
        """Bytes of a block whose values are of a type in KV_DTYPES."""
        layers, sides, heads, entries, dim = self.block_shape()
        value, scale = KV_DTYPES[dtype]
        return layers * sides * heads * entries * (dim * value + scale)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a program reads: canonical name and shape, rows first."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """One model's forward and sample programs."""

    spec: ModelSpec
    kv: KvLayout
    buffers: tuple[Buffer, ...]
    forward: tuple[Op, ...]
    sample: tuple[Op, ...]
    tensors: tuple[TensorSpec, ...]
