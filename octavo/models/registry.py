"""Which family reads which checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.base.errors import ModelFileError, UnsupportedModelError
from octavo.models import gemma, gguf, llama, names, qwen
from octavo.models.config import Config
from octavo.models.gguf import FloatReader, Shapes
from octavo.models.spec import ModelSpec


@dataclass(frozen=True)
class Family:
    """How one architecture name of each dialect is read."""

    from_hf: Callable[[Config], ModelSpec]
    from_gguf: Callable[[Config, Mapping[str, Any], Shapes, tuple[float, ...] | None], ModelSpec]
    hf_layer: Mapping[str, str]


_LLAMA = Family(llama.from_hf, llama.from_gguf, names.HF_LAYER)
_QWEN = Family(qwen.from_hf, qwen.from_gguf, names.HF_LAYER)
_GEMMA = Family(gemma.from_hf, gemma.from_gguf, names.HF_GEMMA_LAYER)

HF_FAMILIES: Mapping[str, Family] = {
    "gemma3_text": _GEMMA,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _QWEN,
    "qwen3": _QWEN,
}
GGUF_FAMILIES: Mapping[str, Family] = {
    "gemma3": _GEMMA,
    "llama": _LLAMA,
    "qwen2": _QWEN,
    "qwen3": _QWEN,
}


@dataclass(frozen=True)
class ModelDef:
    """A model as octavo understands it. names: any canonical tensor name → the checkpoint's."""

    spec: ModelSpec
    name_of: Callable[[str], str]
    also_known: tuple[str, ...] = ()


def read_model(
    metadata: Mapping[str, Any],
    shapes: Shapes,
    fmt: str,
    *,
    where: str = "config",
    read_floats: FloatReader | None = None,
) -> ModelDef:
    """Turn a checkpoint's metadata into plain values.

    metadata: GGUF key/values, or config.json. shapes: tensor name → shape, rows first. fmt: "gguf"
    or "safetensors". where: the file, for messages. read_floats: reads a small float tensor (only
    a GGUF file's rotary factors). Raises UnsupportedModelError, ModelFileError.
    """
    if fmt == "gguf":
        return _read_gguf(metadata, shapes, where, read_floats)
    return _read_hf(metadata, where)


def _family(table: Mapping[str, Family], name: object, where: str, field: str) -> Family:
    if not isinstance(name, str):
        raise ModelFileError(where, field, found=name, expected="the name of an architecture")
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        raise UnsupportedModelError(
            f"{where}: {field}",
            value=name,
            limit=f"one of {', '.join(sorted(table))}",
            remedy=f"the nearest is {near[0]}" if near else None,
        )
    return table[name]


def _read_gguf(
    metadata: Mapping[str, Any], shapes: Shapes, where: str, read_floats: FloatReader | None
) -> ModelDef:
    arch = metadata.get("general.architecture")
    family = _family(GGUF_FAMILIES, arch, where, "general.architecture")
    factors: tuple[float, ...] | None = None
    known: tuple[str, ...] = ()
    if gguf.ROPE_FACTORS in shapes and read_floats is not None:
        factors, known = read_floats(gguf.ROPE_FACTORS), (gguf.ROPE_FACTORS,)
    config = Config(metadata, where, prefix=f"{arch}.")
    spec = family.from_gguf(config, metadata, shapes, factors)

    def name_of(canonical: str) -> str:
        return names.checkpoint_name(canonical, names.GGUF_TOP, names.GGUF_LAYER, "blk.")

    return ModelDef(_checked(spec, where), name_of, known)


def _read_hf(metadata: Mapping[str, Any], where: str) -> ModelDef:
    family = _family(HF_FAMILIES, metadata.get("model_type"), where, "model_type")
    config = Config(metadata, where)
    config.require("quantization_config", ())
    spec = family.from_hf(config)

    def name_of(canonical: str) -> str:
        return names.checkpoint_name(canonical, names.HF_TOP, family.hf_layer, "model.layers.")

    # A tied model may still carry a copy of its head.
    known = (names.HF_TOP["lm_head"],) if spec.tie_embeddings else ()
    return ModelDef(_checked(spec, where), name_of, known)


def _checked(spec: ModelSpec, where: str) -> ModelSpec:
    """Relations that the kernels rely on."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(
            where,
            "attention heads",
            found=f"{spec.num_heads} over {spec.num_kv_heads} kv heads",
            expected="a multiple",
        )
    if spec.head_dim % 2:
        raise ModelFileError(where, "head size", found=spec.head_dim, expected="an even number")
    return spec
