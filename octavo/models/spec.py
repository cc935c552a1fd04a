"""A model as plain values. `program/` turns a `ModelSpec` into ops; nothing here computes.

Tensors have canonical names (below); a family's table maps them to names in a checkpoint.

    embed                       [vocab, hidden]
    layers.{i}.attn_norm        [hidden]            layers.{i}.mlp_norm       [hidden]
    layers.{i}.q                [heads·dim, hidden] layers.{i}.gate           [ffn, hidden]
    layers.{i}.k, layers.{i}.v  [kv_heads·dim, hidden]  layers.{i}.up         [ffn, hidden]
    layers.{i}.o                [hidden, heads·dim] layers.{i}.down           [hidden, ffn]
    layers.{i}.q_bias, k_bias, v_bias (if qkv_bias)
    layers.{i}.q_norm, k_norm   [dim]    (if qk_norm)
    layers.{i}.post_attn_norm, post_mlp_norm  [hidden]  (if post_norms)
    final_norm                  [hidden]
    lm_head                     [vocab, hidden]     (absent when tied: embed is used)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's frequency scaling: long wavelengths are divided by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding of one layer.

    dim: rotated values per head, from the front.
    interleaved: pairs are (2i, 2i+1); otherwise (i, i + dim/2). A checkpoint's format decides: GGUF
        files of the llama architecture hold q and k permuted for interleaved pairs.
    linear_factor: positions are divided by it.
    factors: each pair's frequency is divided by its own (a GGUF file's rope_freqs tensor).
    """

    theta: float
    dim: int
    interleaved: bool
    linear_factor: float = 1.0
    factors: tuple[float, ...] | None = None
    llama3: Llama3Scaling | None = None


@dataclass(frozen=True)
class LayerSpec:
    """What differs from layer to layer. window: keys a token sees, itself included; None is all."""

    window: int | None
    rope: RopeSpec


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything that a decoder-only transformer of a known family needs.

    norm_offset: 1.0 where the checkpoint stores w and the norm multiplies by (1 + w), else 0.0.
    activation: "silu" or "gelu_tanh", of the gated MLP down(act(gate(x)) * up(x)).
    embed_scale: the embedding row is multiplied by it.
    attn_scale: scores are q·k times it.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    norm_eps: float
    norm_offset: float = 0.0
    activation: str = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embed_scale: float = 1.0
    attn_scale: float
    tie_embeddings: bool
    layers: tuple[LayerSpec, ...]

    @property
    def num_layers(self) -> int:
        return len(self.layers)
