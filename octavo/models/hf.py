"""What the families' config.json files have in common."""

from __future__ import annotations

from typing import Any

from octavo.base.errors import UnsupportedModelError
from octavo.models.config import Config
from octavo.models.spec import Llama3Scaling, RopeSpec

# Keys that do not change what a forward pass computes.
INERT = (
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bad_words_ids",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "max_window_layers",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
)


def sizes(c: Config, *, kv_heads: int | None = None, tied: bool = False) -> dict[str, Any]:
    """Fields of a `ModelSpec` that every family names alike.

    kv_heads, tied: what an absent key means (kv_heads None: as many as heads). An explicit null
    num_key_value_heads always means as many as heads.
    """
    heads = c.whole("num_attention_heads")
    absent = kv_heads if kv_heads is not None and not c.given("num_key_value_heads") else heads
    return {
        "vocab_size": c.whole("vocab_size"),
        "hidden_size": c.whole("hidden_size"),
        "num_heads": heads,
        "num_kv_heads": c.whole("num_key_value_heads", absent),
        "intermediate_size": c.whole("intermediate_size"),
        "max_position": c.whole("max_position_embeddings"),
        "norm_eps": c.number("rms_norm_eps", 1e-6),
        "tie_embeddings": c.flag("tie_word_embeddings", tied),
    }


def rope(c: Config, dim: int, default_theta: float) -> RopeSpec:
    """One rope for all layers: `rope_theta` with `rope_scaling`, or `rope_parameters`."""
    theta = c.number("rope_theta", default_theta)
    c.require("partial_rotary_factor", (1, 1.0))
    c.require("rope_interleaved", (False,))
    refuse_two_ropes(c)
    parameters = c.sub("rope_parameters")
    scaling = c.sub("rope_scaling")
    chosen = parameters if parameters is not None else scaling
    if chosen is None:
        return RopeSpec(theta, dim, interleaved=False)
    return scaled_rope(chosen, dim, theta)


def refuse_two_ropes(c: Config) -> None:
    """`rope_parameters` is the later form of `rope_scaling`; both at once could contradict."""
    if c.take("rope_parameters") is not None and (old := c.take("rope_scaling")) is not None:
        raise UnsupportedModelError(
            f"{c.where}: rope_scaling",
            value=old,
            limit="nothing beside rope_parameters",
            remedy="keep one of the two",
        )


def scaled_rope(c: Config, dim: int, default_theta: float) -> RopeSpec:
    """A rope object: type default, linear or llama3. Anything else is refused."""
    theta = c.number("rope_theta", default_theta)
    c.require("partial_rotary_factor", (1, 1.0))
    kind = c.take("rope_type", c.take("type", "default"))
    linear, llama3 = 1.0, None
    if kind == "linear":
        linear = c.number("factor")
    elif kind == "llama3":
        llama3 = Llama3Scaling(
            factor=c.number("factor"),
            low_freq_factor=c.number("low_freq_factor"),
            high_freq_factor=c.number("high_freq_factor"),
            original_max_position=c.whole("original_max_position_embeddings"),
        )
        if llama3.high_freq_factor <= llama3.low_freq_factor:  # nothing to blend between
            raise UnsupportedModelError(
                f"{c.where}: high_freq_factor",
                value=llama3.high_freq_factor,
                limit=f"more than low_freq_factor, {llama3.low_freq_factor}",
            )
    elif kind != "default":
        raise UnsupportedModelError(
            f"{c.where}: rope_type", value=kind, limit="default, linear or llama3"
        )
    c.finish()
    return RopeSpec(theta, dim, interleaved=False, linear_factor=linear, llama3=llama3)
