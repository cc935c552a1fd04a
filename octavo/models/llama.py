"""Llama and what shares its shape: Llama 1–3, Mistral, SmolLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models import gguf, hf
from octavo.models.config import MOST_HEAD_DIM, MOST_LAYERS, Config
from octavo.models.spec import LayerSpec, ModelSpec


def from_hf(c: Config) -> ModelSpec:
    """model_type llama and mistral."""
    mistral = c.take("model_type") == "mistral"  # transformers: other meanings of absent keys
    sizes = hf.sizes(c, kv_heads=8 if mistral else None)
    default_dim = sizes["hidden_size"] // sizes["num_heads"]
    dim = c.whole("head_dim", default_dim, most=MOST_HEAD_DIM)
    c.require("hidden_act", ("silu",))
    c.require("attention_bias", (False,))
    c.require("mlp_bias", (False,))
    window = None
    if mistral:
        window = c.whole("sliding_window", None if c.given("sliding_window") else 4096)
    layer = LayerSpec(window, hf.rope(c, dim, 10000.0))
    count = c.whole("num_hidden_layers", most=MOST_LAYERS)
    c.finish(hf.INERT)
    return ModelSpec(
        family="llama", head_dim=dim, attn_scale=dim**-0.5, layers=(layer,) * count, **sizes
    )


def from_gguf(
    c: Config,
    metadata: Mapping[str, Any],
    shapes: gguf.Shapes,
    factors: tuple[float, ...] | None,
) -> ModelSpec:
    """Architecture "llama". Its q and k rows are permuted for interleaved rotary pairs."""
    sizes = gguf.sizes(c, shapes, eps=1e-5)
    dim = gguf.head_dim(c, sizes["hidden_size"] // sizes["num_heads"])
    c.require("expert_count", (0,))
    c.require("expert_used_count", (0,))
    c.take("tensor_data_layout")
    rope = gguf.rope(c, dim, 10000.0, interleaved=True, factors=factors)
    layer = LayerSpec(c.whole("attention.sliding_window", None), rope)
    count = c.whole("block_count", most=MOST_LAYERS)
    c.finish()
    return ModelSpec(
        family="llama", head_dim=dim, attn_scale=dim**-0.5, layers=(layer,) * count, **sizes
    )
