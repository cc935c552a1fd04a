"""The kinds of op a program is made of: unfused, semantic, over named buffers.

A backend interprets the list. `reference` runs it as it stands; others lower it to their own
kernels. No op takes a per-step scalar from the host: what varies from step to step (tokens,
positions, rows, block tables) comes from the batch, so a tape or a graph can replay the list.

Buffers are float32 unless said otherwise and have one of two leading sizes:

    Per.TOKEN   [n, width]   n tokens of this call, all rows' tokens one after the other
    Per.ROW     [s, width]   s sampling rows of this call

Two programs per model: `forward` (embed … gather_rows) ends with the hidden state of each sampling
row stored in the row's persistent slot; `sample` starts there (final norm, lm_head, sample).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Per(Enum):
    """What a buffer's leading dimension counts."""

    TOKEN = "token"
    ROW = "row"


@dataclass(frozen=True)
class Buffer:
    """A named activation buffer, float32 [n or s, width]."""

    name: str
    per: Per
    width: int


@dataclass(frozen=True)
class Op:
    """Base of all ops. `reads` and `writes` name buffers, `weights` names canonical tensors."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    def reads(self) -> tuple[str, ...]:
        raise NotImplementedError

    def writes(self) -> tuple[str, ...]:
        raise NotImplementedError

    def weights(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Embed(Op):
    """out[t] = scale · weight[token[t]]"""

    out: str
    weight: str
    scale: float

    def reads(self) -> tuple[str, ...]:
        return ()

    def writes(self) -> tuple[str, ...]:
        return (self.out,)

    def weights(self) -> tuple[str, ...]:
        return (self.weight,)


@dataclass(frozen=True)
class RmsNorm(Op):
    """out = x / sqrt(mean(x²) + eps) · (weight + offset), over each group of `width` values.

    width is the buffer's width for a plain norm and head_dim for a norm per head.
    `out` may be `x`.
    """

    out: str
    x: str
    weight: str
    width: int
    eps: float
    offset: float

    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    def writes(self) -> tuple[str, ...]:
        return (self.out,)

    def weights(self) -> tuple[str, ...]:
        return (self.weight,)


@dataclass(frozen=True)
class Linear(Op):
    """out = x · weightᵀ (+ bias). weight [n_out, n_in] in its checkpoint format."""

    out: str
    x: str
    weight: str
    n_in: int
    n_out: int
    bias: str | None = None

    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    def writes(self) -> tuple[str, ...]:
        return (self.out,)

    def weights(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True)
class Rope(Op):
    """Rotate each of `heads` heads of x in place by the token's position.

    inv_freq: dim/2 angular frequencies (radians per position), scaling already applied.
    Pairs are (2i, 2i+1) if interleaved, else (i, i + dim/2), within each head.
    """

    x: str
    heads: int
    head_dim: int
    inv_freq: tuple[float, ...]
    interleaved: bool

    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    def writes(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True)
class KvStore(Op):
    """Write each token's k and v into its slot of the paged cache: group's table, layer in it.

    slot of position p: block table[row][p // block_size], entry p % block_size.
    """

    k: str
    v: str
    group: int
    layer: int

    def reads(self) -> tuple[str, ...]:
        return (self.k, self.v)

    def writes(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Attention(Op):
    """out = softmax(scale · q·Kᵀ) V over the row's cached keys, causal, grouped-query.

    A token at position p sees keys [max(0, p − window + 1), p]; window None sees all of [0, p].
    Head h uses kv head h // (heads / kv_heads). q, out [n, heads · head_dim].
    """

    out: str
    q: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None

    def reads(self) -> tuple[str, ...]:
        return (self.q,)

    def writes(self) -> tuple[str, ...]:
        return (self.out,)


@dataclass(frozen=True)
class ActMul(Op):
    """out = act(gate) · up; act is "silu" or "gelu_tanh". `out` may be `gate`."""

    out: str
    gate: str
    up: str
    act: str

    def reads(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def writes(self) -> tuple[str, ...]:
        return (self.out,)


@dataclass(frozen=True)
class Add(Op):
    """out = a + b. `out` may be `a`."""

    out: str
    a: str
    b: str

    def reads(self) -> tuple[str, ...]:
        return (self.a, self.b)

    def writes(self) -> tuple[str, ...]:
        return (self.out,)


@dataclass(frozen=True)
class GatherRows(Op):
    """hidden[row of s] = x[last token of s] for each sampling row; ends `forward`."""

    x: str

    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    def writes(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class LoadRows(Op):
    """out[s] = hidden[row of s]; begins `sample`."""

    out: str

    def reads(self) -> tuple[str, ...]:
        return ()

    def writes(self) -> tuple[str, ...]:
        return (self.out,)


@dataclass(frozen=True)
class Sample(Op):
    """Draw a token per row from logits [s, vocab], by the row's parameters; ends `sample`.

    May overwrite the logits. Order of processing: see `SamplingParams`.
    """

    logits: str

    def reads(self) -> tuple[str, ...]:
        return (self.logits,)

    def writes(self) -> tuple[str, ...]:
        return ()
