"""Families as data: a checkpoint's config becomes a `ModelSpec` of plain values."""

from octavo.models.names import check_tensors
from octavo.models.registry import GGUF_FAMILIES, HF_FAMILIES, ModelDef, read_model
from octavo.models.spec import LayerSpec, Llama3Scaling, ModelSpec, RopeSpec

__all__ = [
    "GGUF_FAMILIES",
    "HF_FAMILIES",
    "LayerSpec",
    "Llama3Scaling",
    "ModelDef",
    "ModelSpec",
    "RopeSpec",
    "check_tensors",
    "read_model",
]
