"""Gemma 3, text: window layers with a full layer after every five, norms around each branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.base.errors import UnsupportedModelError
from octavo.models import gguf, hf
from octavo.models.config import MOST_HEAD_DIM, MOST_LAYERS, Config
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec

_PATTERN = 6
_LOCAL_THETA = 10_000.0
_LAYERS_27B = 62


def from_hf(c: Config) -> ModelSpec:
    """model_type gemma3_text. The checkpoint's norms multiply by 1 + weight."""
    sizes = hf.sizes(c, kv_heads=4, tied=True)
    dim = c.whole("head_dim", 256, most=MOST_HEAD_DIM)
    c.require("hidden_activation", ("gelu_pytorch_tanh",))
    c.require("attention_bias", (False,))
    c.require("attn_logit_softcapping", ())
    c.require("final_logit_softcapping", ())
    c.require("use_bidirectional_attention", (False,))
    full, local = _hf_ropes(c, dim)
    layers = _hf_layers(c, full, local)
    scale = c.number("query_pre_attn_scalar", 256.0) ** -0.5
    c.finish(hf.INERT)
    return _spec(sizes, dim=dim, norm_offset=1.0, attn_scale=scale, layers=layers)


def _hf_ropes(c: Config, dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Ropes of full and of window layers, in either form of the config."""
    theta = c.number("rope_theta", 1_000_000.0)
    local_theta = c.number("rope_local_base_freq", _LOCAL_THETA)
    hf.refuse_two_ropes(c)
    both = c.sub("rope_parameters")
    scaling = c.sub("rope_scaling")
    plain = RopeSpec(theta, dim, interleaved=False)
    local = RopeSpec(local_theta, dim, interleaved=False)
    if both is not None:
        full_part, local_part = both.sub("full_attention"), both.sub("sliding_attention")
        both.finish()
        return (
            plain if full_part is None else hf.scaled_rope(full_part, dim, theta),
            local if local_part is None else hf.scaled_rope(local_part, dim, local_theta),
        )
    return plain if scaling is None else hf.scaled_rope(scaling, dim, theta), local


def _hf_layers(c: Config, full: RopeSpec, local: RopeSpec) -> tuple[LayerSpec, ...]:
    count = c.whole("num_hidden_layers", most=MOST_LAYERS)
    window = c.whole("sliding_window")
    pattern = c.whole("sliding_window_pattern", None) or c.whole(
        "_sliding_window_pattern", _PATTERN
    )
    types = c.take("layer_types")
    if types is None:
        return _layers(count, pattern, window, full, local)
    kinds = {"full_attention": LayerSpec(None, full), "sliding_attention": LayerSpec(window, local)}
    known = isinstance(types, list) and all(isinstance(t, str) and t in kinds for t in types)
    if not known or len(types) != count:
        raise UnsupportedModelError(
            f"{c.where}: layer_types", value=types, limit=f"{count} of {', '.join(kinds)}"
        )
    return tuple(kinds[kind] for kind in types)


def _layers(
    count: int, pattern: int, window: int, full: RopeSpec, local: RopeSpec
) -> tuple[LayerSpec, ...]:
    """Every `pattern`-th layer is full: layer i where (i + 1) % pattern == 0."""
    return tuple(
        LayerSpec(None, full) if (i + 1) % pattern == 0 else LayerSpec(window, local)
        for i in range(count)
    )


def from_gguf(
    c: Config,
    metadata: Mapping[str, Any],
    shapes: gguf.Shapes,
    factors: tuple[float, ...] | None,
) -> ModelSpec:
    """Architecture "gemma3". The converter has added the 1 to the norms already."""
    sizes = gguf.sizes(c, shapes, eps=1e-6)
    dim = gguf.head_dim(c, 256)
    c.require("attn_logit_softcapping", ())
    c.require("final_logit_softcapping", ())
    full = gguf.rope(c, dim, 1_000_000.0, interleaved=False, factors=factors)
    local = RopeSpec(c.number("rope.freq_base_swa", _LOCAL_THETA), dim, interleaved=False)
    count = c.whole("block_count", most=MOST_LAYERS)
    pattern = c.whole("attention.sliding_window_pattern", _PATTERN)
    layers = _layers(count, pattern, c.whole("attention.sliding_window"), full, local)
    # The 27B model scales by its hidden size per head, the others by the head's size.
    width = sizes["hidden_size"] // sizes["num_heads"] if count == _LAYERS_27B else dim
    c.finish()
    return _spec(sizes, dim=dim, norm_offset=0.0, attn_scale=float(width) ** -0.5, layers=layers)


def _spec(
    sizes: dict[str, Any],
    *,
    dim: int,
    norm_offset: float,
    attn_scale: float,
    layers: tuple[LayerSpec, ...],
) -> ModelSpec:
    return ModelSpec(
        family="gemma3",
        head_dim=dim,
        norm_offset=norm_offset,
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        # transformers rounds this to the weights' dtype when it runs in bfloat16; octavo computes
        # in float32, as it does then.
        embed_scale=float(sizes["hidden_size"]) ** 0.5,
        attn_scale=attn_scale,
        layers=layers,
        **sizes,
    )
