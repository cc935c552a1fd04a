"""Octavo: an LLM inference engine with a paged KV cache.

The names below are loaded when they are first used, so that `import octavo` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.base.outputs import CompletionOutput, RequestOutput
    from octavo.base.sampling_params import RequestOutputKind, SamplingParams
    from octavo.client import LLM, AsyncLLM
    from octavo.config import EngineArgs

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "octavo.client",
    "AsyncLLM": "octavo.client",
    "CompletionOutput": "octavo.base.outputs",
    "RequestOutput": "octavo.base.outputs",
    "EngineArgs": "octavo.config",
    "RequestOutputKind": "octavo.base.sampling_params",
    "SamplingParams": "octavo.base.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # costs 30 ms

        try:
            return version("octavo")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0.1.0"
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
