"""A bounded reader of safetensors headers, one file or a folder of shards.

    0      u64 header length n
    8      JSON: { name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…} }
    8 + n  data: offsets count from here

The length is checked against the file and a limit before it is read; then every entry is checked as
in GGUF: type, shape, size against shape, extent, overlap. Only float32, float16 and bfloat16 are
taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.base.errors import ModelFileError
from octavo.weights.quant import tensor_nbytes
from octavo.weights.tensor import (
    TensorInfo,
    check_layout,
    check_shape,
    parse_json_object,
    read_json_file,
    unsupported_dtype,
)

# Published shards stay under 2 MiB. JSON costs tens of bytes of Python objects per byte.
MOST_HEADER_BYTES = 16 << 20
DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_safetensors_header(path: Path) -> tuple[dict[str, TensorInfo], str]:
    """The tensors of one file by name and the SHA-256 of its header bytes.

    ModelFileError names the field that lies; UnsupportedModelError a tensor of another type.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            length = _header_length(path, size, prefix)
            raw = file.read(length)
    except OSError as error:
        raise ModelFileError(
            path, "file", found=error.strerror or str(error), expected="a readable file"
        ) from None
    if len(raw) < length:
        raise ModelFileError(path, "header", found=f"{len(raw)} bytes", expected=f"{length} bytes")
    entries = parse_json_object(path, "header", raw)
    _check_free_text(path, entries.pop("__metadata__", {}))
    tensors = {
        name: _tensor(path, name, entry, 8 + length, size) for name, entry in entries.items()
    }
    check_layout(tensors.values(), path, size)
    return tensors, hashlib.sha256(prefix + raw).hexdigest()


def read_safetensors_folder(folder: Path) -> tuple[dict[str, TensorInfo], dict[Path, str]]:
    """All tensors of a folder with model.safetensors or an index of shards; header hashes by file.

    Every tensor of the index must be in the shard it names, and no tensor in two shards. A shard is
    a plain file name: it cannot lead out of the folder.
    """
    index = folder / INDEX
    if not index.exists():
        single = folder / SINGLE
        tensors, digest = read_safetensors_header(single)
        return tensors, {single: digest}
    weight_map = _weight_map(index)
    merged: dict[str, TensorInfo] = {}
    digests: dict[Path, str] = {}
    for shard in sorted(set(weight_map.values())):
        path = folder / shard
        tensors, digests[path] = read_safetensors_header(path)
        for name, tensor in tensors.items():
            if name in merged:
                where = merged[name].file.name
                raise ModelFileError(path, f"tensor {name!r}", found=f"also in {where}",
                                     expected="each tensor in one shard")  # fmt: skip
            merged[name] = tensor
    for name, shard in weight_map.items():
        if name not in merged or merged[name].file.name != shard:
            raise ModelFileError(
                index, f"weight_map {name!r}", found=shard, expected="the shard that holds it"
            )
    return merged, digests


def _header_length(path: Path, size: int, prefix: bytes) -> int:
    if len(prefix) < 8:
        raise ModelFileError(
            path, "header length", found=f"{len(prefix)} bytes", expected="8 bytes"
        )
    length = int.from_bytes(prefix, "little")
    most = min(size - 8, MOST_HEADER_BYTES)
    if not 2 <= length <= most:
        raise ModelFileError(
            path, "header length", found=length, expected=f"2 to {most} (the file has {size} bytes)"
        )
    return length


def _check_free_text(path: Path, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ModelFileError(
            path, "__metadata__", found=metadata, expected="an object with string values"
        )


def _whole_numbers(value: object) -> Iterator[int]:
    """The items of a JSON list of whole numbers from 0; TypeError for anything else."""
    if not isinstance(value, list):
        raise TypeError
    for item in value:
        if type(item) is not int or item < 0:
            raise TypeError
        yield item


def _tensor(path: Path, name: str, entry: Any, data_offset: int, size: int) -> TensorInfo:
    field = f"tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(
            path, field, found=entry, expected="an object with dtype, shape and data_offsets"
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str):
        raise ModelFileError(path, f"{field} dtype", found=dtype, expected="a type name")
    if dtype not in DTYPES:
        raise unsupported_dtype(path, name, dtype[:32], DTYPES)
    try:
        shape = tuple(_whole_numbers(entry["shape"]))
    except TypeError:
        raise ModelFileError(
            path, f"{field} shape", found=entry["shape"], expected="a list of whole numbers"
        ) from None
    check_shape(path, field, shape)
    try:
        begin, end = _whole_numbers(entry["data_offsets"])
    except (TypeError, ValueError):
        raise ModelFileError(
            path,
            f"{field} data_offsets",
            found=entry["data_offsets"],
            expected="two whole numbers",
        ) from None
    nbytes = tensor_nbytes(DTYPES[dtype], shape)
    if end - begin != nbytes or data_offset + end > size:
        raise ModelFileError(
            path,
            f"{field} data_offsets",
            found=[begin, end],
            expected=f"{nbytes} bytes for {dtype} {list(shape)}, ending by {size - data_offset}",
        )
    return TensorInfo(name, shape, DTYPES[dtype], data_offset + begin, nbytes, path)


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_file(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(
            index, "weight_map", found=weight_map, expected="an object of tensor → shard"
        )
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard.endswith(".safetensors")
        if not plain or "\0" in shard or shard != Path(shard).name or "\\" in shard:
            raise ModelFileError(
                index,
                f"weight_map {name!r}",
                found=shard,
                expected="a plain file name ending in .safetensors",
            )
    return weight_map
