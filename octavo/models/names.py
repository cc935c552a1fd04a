"""Canonical tensor names to names in a checkpoint, and the check of their shapes.

`models` may not import `program`, so the shapes come in as plain pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from octavo.base.errors import ModelFileError, UnsupportedModelError

HF_TOP = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{part: f"self_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkv"},
    **{f"{part}_norm": f"self_attn.{part}_norm.weight" for part in "qk"},
    **{part: f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
}
GGUF_TOP = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
}
GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    **{f"{part}_bias": f"attn_{part}.bias" for part in "qkv"},
    **{f"{part}_norm": f"attn_{part}_norm.weight" for part in "qk"},
    **{part: f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    "post_attn_norm": "post_attention_norm.weight",
    "post_mlp_norm": "post_ffw_norm.weight",
}
# Gemma's own: the norm before the MLP has another name, and there are norms after each branch.
HF_GEMMA_LAYER = {
    **HF_LAYER,
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
_HARMLESS_ENDINGS = (".rotary_emb.inv_freq",)


def checkpoint_name(
    canonical: str, top: Mapping[str, str], layer: Mapping[str, str], layer_prefix: str
) -> str:
    """The checkpoint's name of a canonical tensor. layer_prefix: "model.layers." or "blk."."""
    if not canonical.startswith("layers."):
        return top[canonical]
    _, index, part = canonical.split(".", 2)
    return f"{layer_prefix}{index}.{layer[part]}"


def check_tensors(
    name_of: Callable[[str], str],
    expected: Iterable[tuple[str, tuple[int, ...]]],
    found: Mapping[str, tuple[int, ...]],
    file: str,
    also_known: Iterable[str] = (),
) -> None:
    """Every tensor that the spec asks for is there with its shape, and nothing else is.

    name_of: canonical → checkpoint name; expected: canonical names and shapes; found: the
    checkpoint's. Raises ModelFileError, or UnsupportedModelError for a tensor nobody reads.
    """
    known = set(also_known)
    for canonical, shape in expected:
        name = name_of(canonical)
        known.add(name)
        if name not in found:
            raise ModelFileError(file, f"tensor {name}", found="nothing", expected=f"shape {shape}")
        if tuple(found[name]) != shape:
            raise ModelFileError(
                file, f"tensor {name}: shape", found=tuple(found[name]), expected=str(shape)
            )
    for name in found:
        if name not in known and not name.endswith(_HARMLESS_ENDINGS):
            raise UnsupportedModelError(
                f"{file}: tensor {name} is not part of this family as octavo knows it",
                remedy="running without it would change the result",
            )
