"""What a header says about one tensor, and the checks every container format shares."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.base.errors import ModelFileError, UnsupportedModelError

# A product of dimensions beyond this is a lie: 2**48 values are 140 TB at four bits each.
MOST_VALUES = 1 << 48
MOST_DIMS = 4
# Bytes of a JSON file next to the weights (config, index, tokenizer_config).
MOST_JSON_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint.

    shape: numpy order, rows first: a linear layer is [out, in] in every format.
    dtype: a key of `quant.BLOCK`.
    offset, nbytes: where its bytes lie, from the start of `file`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int
    file: Path


def check_shape(file: Path, field: str, shape: tuple[int, ...]) -> None:
    """1 to 4 dimensions of at least 1, their product below 2**48."""
    if not 1 <= len(shape) <= MOST_DIMS:
        raise ModelFileError(
            file, f"{field} dimensions", found=len(shape), expected=f"1 to {MOST_DIMS}"
        )
    if min(shape) < 1 or math.prod(shape) >= MOST_VALUES:
        raise ModelFileError(
            file, f"{field} shape", found=shape, expected="sizes from 1, fewer than 2**48 values"
        )


def check_layout(tensors: Iterable[TensorInfo], file: Path, file_size: int) -> None:
    """No tensor reaches past the end of `file` or into another one."""
    end, previous = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset + tensor.nbytes > file_size:
            raise ModelFileError(
                file,
                f"tensor {tensor.name!r} end",
                found=tensor.offset + tensor.nbytes,
                expected=f"at most the file's {file_size} bytes",
            )
        if tensor.offset < end:
            raise ModelFileError(
                file,
                f"tensor {tensor.name!r} offset",
                found=tensor.offset,
                expected=f"at least {end}, where tensor {previous!r} ends",
            )
        end, previous = tensor.offset + tensor.nbytes, tensor.name


def unsupported_dtype(
    file: Path, tensor: str, dtype: str, supported: Iterable[str]
) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{file}: tensor {tensor!r} has type {dtype}",
        limit=f"one of {', '.join(name.upper() for name in supported)}",
        remedy="use a checkpoint in one of these formats",
    )


def parse_json_object(file: Path, field: str, raw: bytes) -> dict[str, Any]:
    """`raw` as a JSON object without repeated keys; ModelFileError otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in found if keys.count(key) > 1)
            raise ModelFileError(
                file, f"{field} key {twice!r}", found="it twice", expected="unique keys"
            )
        return found

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise ModelFileError(
            file, field, found=f"byte {error.start} is not UTF-8", expected="UTF-8 JSON"
        ) from None
    except RecursionError:
        raise ModelFileError(file, field, found="very deep nesting", expected="JSON") from None
    except ValueError as error:
        raise ModelFileError(file, field, found=str(error), expected="JSON") from None
    if not isinstance(value, dict):
        raise ModelFileError(file, field, found=type(value).__name__, expected="a JSON object")
    return value


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    try:
        with path.open("rb") as f:
            raw = f.read(MOST_JSON_BYTES + 1)
    except OSError as error:
        raise ModelFileError(
            path, "file", found=error.strerror or str(error), expected="a readable file"
        ) from None
    if len(raw) > MOST_JSON_BYTES:
        raise ModelFileError(
            path, "size", found=path.stat().st_size, expected=f"at most {MOST_JSON_BYTES} bytes"
        )
    return parse_json_object(path, "content", raw)
