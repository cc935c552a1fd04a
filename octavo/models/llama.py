"""Llama and what shares its shape: Llama 1–3, Mistral, SmolLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models import gguf, hf
from octavo.models.config import MOST_HEAD_DIM, MOST_LAYERS, Config
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec


def from_hf(c: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelSpec:
    """model_type llama and mistral."""
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    dim = c.whole("head_dim", hidden // heads, most=MOST_HEAD_DIM)
    c.require("hidden_act", ("silu",))
    c.require("attention_bias", (False,))
    c.require("mlp_bias", (False,))
    rope = hf.rope(c, dim, 10000.0)
    window, kv_heads = None, heads
    if c.take("model_type") == "mistral":  # what transformers takes where the key is not there
        window = c.whole("sliding_window", None if c.given("sliding_window") else 4096)
        kv_heads = heads if c.given("num_key_value_heads") else 8
    layer = LayerSpec(window, rope)
    spec = _spec(
        "llama",
        heads=heads,
        kv_heads=c.whole("num_key_value_heads", kv_heads),
        dim=dim,
        hidden=hidden,
        vocab=c.whole("vocab_size"),
        ffn=c.whole("intermediate_size"),
        context=c.whole("max_position_embeddings"),
        eps=c.number("rms_norm_eps", 1e-6),
        tied=c.flag("tie_word_embeddings", False),
        layers=(layer,) * c.whole("num_hidden_layers", most=MOST_LAYERS),
    )
    c.finish(hf.INERT)
    return spec


def from_gguf(
    c: Config,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    factors: tuple[float, ...] | None,
) -> ModelSpec:
    """Architecture "llama". Its q and k rows are permuted for interleaved rotary pairs."""
    hidden, heads = c.whole("embedding_length"), c.whole("attention.head_count")
    dim = c.whole("attention.key_length", hidden // heads, most=MOST_HEAD_DIM)
    c.require("attention.value_length", (dim,))
    c.require("expert_count", (0,))
    c.require("expert_used_count", (0,))
    c.take("tensor_data_layout")
    rope: RopeSpec = gguf.rope(c, dim, 10000.0, interleaved=True, factors=factors)
    layer = LayerSpec(c.whole("attention.sliding_window", None), rope)
    spec = _spec(
        "llama",
        heads=heads,
        kv_heads=c.whole("attention.head_count_kv", heads),
        dim=dim,
        hidden=hidden,
        vocab=gguf.vocab_size(c, metadata, shapes),
        ffn=c.whole("feed_forward_length"),
        context=c.whole("context_length"),
        eps=c.number("attention.layer_norm_rms_epsilon", 1e-5),
        tied="output.weight" not in shapes,
        layers=(layer,) * c.whole("block_count", most=MOST_LAYERS),
    )
    c.finish()
    return spec


def _spec(
    family: str,
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    hidden: int,
    vocab: int,
    ffn: int,
    context: int,
    eps: float,
    tied: bool,
    layers: tuple[LayerSpec, ...],
) -> ModelSpec:
    return ModelSpec(
        family=family,
        vocab_size=vocab,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        intermediate_size=ffn,
        max_position=context,
        norm_eps=eps,
        norm_offset=0.0,
        activation="silu",
        qkv_bias=False,
        qk_norm=False,
        post_norms=False,
        embed_scale=1.0,
        attn_scale=dim**-0.5,
        tie_embeddings=tied,
        layers=layers,
    )
