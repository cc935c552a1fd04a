"""Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k), dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models import gguf, hf
from octavo.models.config import MOST_HEAD_DIM, MOST_LAYERS, Config
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec


def from_hf(c: Config) -> ModelSpec:
    """model_type qwen2 and qwen3."""
    qwen3 = c.take("model_type") == "qwen3"
    sizes = hf.sizes(c, kv_heads=32)
    default_dim = 128 if qwen3 else sizes["hidden_size"] // sizes["num_heads"]
    dim = c.whole("head_dim", default_dim, most=MOST_HEAD_DIM)
    c.require("hidden_act", ("silu",))
    c.require("attention_bias", (False,))
    c.require("use_sliding_window", (False,))
    c.require("use_mrope", (False,))
    c.take("sliding_window")  # unused while use_sliding_window is false
    count = c.whole("num_hidden_layers", most=MOST_LAYERS)
    c.require("layer_types", (["full_attention"] * count,))
    rope = hf.rope(c, dim, 10000.0)
    c.finish(hf.INERT)
    return _spec(qwen3, dim, count, rope, sizes)


def from_gguf(
    c: Config,
    metadata: Mapping[str, Any],
    shapes: gguf.Shapes,
    factors: tuple[float, ...] | None,
) -> ModelSpec:
    """Architectures "qwen2" and "qwen3"."""
    sizes = gguf.sizes(c, shapes, eps=1e-6)
    dim = gguf.head_dim(c, sizes["hidden_size"] // sizes["num_heads"])
    rope = gguf.rope(c, dim, 10000.0, interleaved=False, factors=factors)
    count = c.whole("block_count", most=MOST_LAYERS)
    c.finish()
    return _spec(metadata.get("general.architecture") == "qwen3", dim, count, rope, sizes)


def _spec(qwen3: bool, dim: int, count: int, rope: RopeSpec, sizes: dict[str, Any]) -> ModelSpec:
    return ModelSpec(
        family="qwen3" if qwen3 else "qwen2",
        head_dim=dim,
        qkv_bias=not qwen3,
        qk_norm=qwen3,
        attn_scale=dim**-0.5,
        layers=(LayerSpec(None, rope),) * count,
        **sizes,
    )
