"""Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k), dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models import gguf, hf
from octavo.models.config import MOST_HEAD_DIM, MOST_LAYERS, Config
from octavo.models.spec import LayerSpec, ModelSpec


def from_hf(c: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelSpec:
    """model_type qwen2 and qwen3."""
    qwen3 = c.take("model_type") == "qwen3"
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    dim = c.whole("head_dim", 128 if qwen3 else hidden // heads, most=MOST_HEAD_DIM)
    c.require("hidden_act", ("silu",))
    c.require("attention_bias", (False,))
    c.require("use_sliding_window", (False,))
    c.take("sliding_window")  # unused while use_sliding_window is false
    count = c.whole("num_hidden_layers", most=MOST_LAYERS)
    c.require("layer_types", (["full_attention"] * count,))
    kv_heads = heads if c.given("num_key_value_heads") else 32  # as transformers
    layer = LayerSpec(None, hf.rope(c, dim, 10000.0))
    spec = ModelSpec(
        family="qwen3" if qwen3 else "qwen2",
        vocab_size=c.whole("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=c.whole("num_key_value_heads", kv_heads),
        head_dim=dim,
        intermediate_size=c.whole("intermediate_size"),
        max_position=c.whole("max_position_embeddings"),
        norm_eps=c.number("rms_norm_eps", 1e-6),
        norm_offset=0.0,
        activation="silu",
        qkv_bias=not qwen3,
        qk_norm=qwen3,
        post_norms=False,
        embed_scale=1.0,
        attn_scale=dim**-0.5,
        tie_embeddings=c.flag("tie_word_embeddings", False),
        layers=(layer,) * count,
    )
    c.require("use_mrope", (False,))
    c.finish(hf.INERT)
    return spec


def from_gguf(
    c: Config,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    factors: tuple[float, ...] | None,
) -> ModelSpec:
    """Architectures "qwen2" and "qwen3"."""
    qwen3 = metadata.get("general.architecture") == "qwen3"
    hidden, heads = c.whole("embedding_length"), c.whole("attention.head_count")
    dim = c.whole("attention.key_length", hidden // heads, most=MOST_HEAD_DIM)
    c.require("attention.value_length", (dim,))
    layer = LayerSpec(None, gguf.rope(c, dim, 10000.0, interleaved=False, factors=factors))
    spec = ModelSpec(
        family="qwen3" if qwen3 else "qwen2",
        vocab_size=gguf.vocab_size(c, metadata, shapes),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=c.whole("attention.head_count_kv", heads),
        head_dim=dim,
        intermediate_size=c.whole("feed_forward_length"),
        max_position=c.whole("context_length"),
        norm_eps=c.number("attention.layer_norm_rms_epsilon", 1e-6),
        norm_offset=0.0,
        activation="silu",
        qkv_bias=not qwen3,
        qk_norm=qwen3,
        post_norms=False,
        embed_scale=1.0,
        attn_scale=dim**-0.5,
        tie_embeddings="output.weight" not in shapes,
        layers=(layer,) * c.whole("block_count", most=MOST_LAYERS),
    )
    c.finish()
    return spec
