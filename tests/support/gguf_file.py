"""Write small GGUF (version 3) files, independently of the reader that they test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.weights.quant import quantize

TENSOR_CODE = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8,
               "q4_k": 12, "q5_k": 13, "q6_k": 14, "bf16": 30}  # fmt: skip
# Value type codes by numpy dtype.
NUMBER_CODE = {"uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5,
               "float32": 6, "bool": 7, "uint64": 10, "int64": 11, "float64": 12}  # fmt: skip
ALIGNMENT = 32


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, np.ndarray]]
) -> Path:
    """metadata: bool, int (uint32; int32 if negative), float (float32), str, numpy scalars and
    arrays (their own type), or lists of these. tensors: name → (dtype, float32 array)."""
    alignment = int(metadata.get("general.alignment", ALIGNMENT))
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _string(key) + _value(value)
    data = bytearray()
    for name, (dtype, array) in tensors.items():
        dims = tuple(reversed(array.shape))
        header += _string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        header += struct.pack("<IQ", TENSOR_CODE[dtype], len(data))
        data += quantize(array, dtype).tobytes()
        data += bytes(-len(data) % alignment)
    header += bytes(-len(header) % alignment)
    path.write_bytes(header + data)
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    code, raw = _coded(value)
    return struct.pack("<I", code) + raw


def _coded(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return 8, _string(value)
    if isinstance(value, np.ndarray):
        return 9, struct.pack("<IQ", NUMBER_CODE[value.dtype.name], value.size) + value.tobytes()
    if isinstance(value, np.generic):
        return NUMBER_CODE[value.dtype.name], value.tobytes()
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, int):
        return (5, struct.pack("<i", value)) if value < 0 else (4, struct.pack("<I", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, Sequence) and value:
        items = [_coded(item) for item in value]
        return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(raw for _, raw in items)
    raise TypeError(f"no GGUF type for {value!r}")
