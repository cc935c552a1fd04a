"""Write small safetensors files and folders, independently of the reader that they test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octavo.weights.quant import quantize


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> Path:
    """tensors: name → ("f32" | "f16" | "bf16", float32 array)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in tensors.items():
        raw = quantize(array, dtype).tobytes()
        header[name] = {
            "dtype": dtype.upper(),
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return write_raw(path, header, data)


def write_raw(path: Path, header: object, data: bytes) -> Path:
    """Any header, honest or not."""
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path
