"""Where weights come from and what their bytes mean: sources, GGUF, safetensors, block formats."""

from octavo.weights.cache import CachedModel, VerifiedFile, cached_models, verify
from octavo.weights.catalog import CATALOG, DEFAULT_MODEL, CatalogModel
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.gguf import LazyStrings
from octavo.weights.hub import cached_hub_models
from octavo.weights.progress import Progress
from octavo.weights.quant import BLOCK, BlockFormat, dequantize, quantize, tensor_nbytes
from octavo.weights.sources import resolve_model
from octavo.weights.tensor import TensorInfo

__all__ = [
    "BLOCK",
    "CATALOG",
    "DEFAULT_MODEL",
    "BlockFormat",
    "CachedModel",
    "CatalogModel",
    "Checkpoint",
    "LazyStrings",
    "Progress",
    "TensorInfo",
    "VerifiedFile",
    "cached_hub_models",
    "cached_models",
    "dequantize",
    "open_checkpoint",
    "quantize",
    "resolve_model",
    "tensor_nbytes",
    "verify",
]
