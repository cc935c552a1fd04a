"""A bounded reader of GGUF headers (versions 2 and 3, little endian).

    0    magic "GGUF"   u32 version   u64 tensors   u64 keys
    24   keys × { string key, u32 type, value }               string: u64 length, UTF-8 bytes
         tensors × { string name, u32 dims, dims × u64, u32 type, u64 offset }
         padding to general.alignment (32 unless given)
         data: tensor offsets count from here

The header is hostile until shown otherwise: each count and length is checked against the bytes
that are left in the file before anything is made from it, and the file is read only as far as the
header reaches, in a buffer that at most doubles. String arrays (a vocabulary) are walked once for
their extents and decoded only when asked for, so a 262,144-token header takes tens of milliseconds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np

from octavo.base.errors import ModelFileError, UnsupportedModelError
from octavo.weights.quant import BLOCK, tensor_nbytes
from octavo.weights.tensor import TensorInfo, check_layout, check_shape, unsupported_dtype

MOST_HEADER_BYTES = 256 << 20
MOST_STRING_BYTES = 16 << 20
MOST_KEYS = 1 << 16
MOST_TENSORS = 1 << 16
MOST_ITEMS = 1 << 24
MOST_NAME_BYTES = 1 << 10
MOST_ARRAY_DEPTH = 3
# Arrays inside arrays in one header: each costs Python objects, unlike the items of a flat array.
MOST_INNER_ARRAYS = 1 << 16
FIRST_READ_BYTES = 1 << 20

# Fewest bytes that a key (length, type, smallest value) and a tensor record can take.
KEY_BYTES = 8 + 4 + 1
TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8",
           11: "<i8", 12: "<f8"}  # fmt: skip

# ggml's tensor types by code; those in quant.BLOCK are supported, errors name the others.
TENSOR_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1",
    10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs",
    17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs",
    24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 30: "bf16", 34: "tq1_0",
    35: "tq2_0", 39: "mxfp4", 40: "nvfp4",
}  # fmt: skip

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class GGUFHeader:
    """metadata: bool, int, float, str, numpy array, `LazyStrings` or a list of arrays by key.

    header_sha256: of every byte before the tensor data. data_offset: where that data starts.
    """

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    header_sha256: str
    data_offset: int


class LazyStrings(Sequence[str]):
    """A string array kept as the file's bytes (8-byte length before each string).

    Lengths were checked when the header was read; UTF-8 is checked when a string is decoded
    (ModelFileError). Iterating decodes in order and keeps nothing; `strings[i]` walks once and then
    keeps the offsets.
    """

    __slots__ = ("_count", "_field", "_file", "_raw", "_starts")

    def __init__(self, file: Path, field: str, raw: bytes, count: int) -> None:
        self._file = file
        self._field = field
        self._raw = raw
        self._count = count
        self._starts: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def buffer(self) -> bytes:
        """The array as it lies in the file, lengths included: what identifies its content."""
        return self._raw

    def raw(self) -> Iterator[bytes]:
        """The strings as bytes, in order."""
        raw, at, length_at = self._raw, 0, _U64.unpack_from
        for _ in range(self._count):
            start = at + 8
            at = start + length_at(raw, at)[0]
            yield raw[start:at]

    def __iter__(self) -> Iterator[str]:
        for index, item in enumerate(self.raw()):
            yield self._decode(index, item)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        index %= self._count
        if self._starts is None:
            sizes = np.fromiter((8 + len(item) for item in self.raw()), np.int64, self._count)
            self._starts = np.cumsum(sizes) - sizes
        start = int(self._starts[index])
        length: int = _U64.unpack_from(self._raw, start)[0]
        return self._decode(index, self._raw[start + 8 : start + 8 + length])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(other) == self._count and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:4])
        return f"LazyStrings([{shown}{', …' if self._count > 4 else ''}], {self._count} items)"

    def _decode(self, index: int, item: bytes) -> str:
        try:
            return item.decode("utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(
                self._file, f"{self._field}[{index}]", found=item[:32], expected="UTF-8"
            ) from None


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read and check the header of `path`.

    ModelFileError names the field that lies; UnsupportedModelError a tensor type, a part of a split
    model or a big-endian file.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file).header()
    except OSError as error:
        raise ModelFileError(
            path, "file", found=error.strerror or str(error), expected="a readable file"
        ) from None


class _Reader:
    """A cursor over the header. `data` holds the file's first bytes and grows on demand."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.size = file.seek(0, 2)
        file.seek(0)
        self.data = b""
        self.at = 0
        self.inner_arrays_left = MOST_INNER_ARRAYS

    # The header, top to bottom ---------------------------------------------------------------

    def header(self) -> GGUFHeader:
        version = self.preamble()
        tensor_count = self.count("tensor count", TENSOR_BYTES, MOST_TENSORS)
        key_count = self.count("key count", KEY_BYTES, MOST_KEYS)
        metadata: dict[str, Any] = {}
        for index in range(key_count):
            key = self.string(f"key {index}", MOST_NAME_BYTES)
            if key in metadata:
                raise self.lie(f"key {index}", f"{key!r} again", "unique keys")
            metadata[key] = self.value(f"key {key!r}")
        alignment = self.alignment(metadata)
        parts = metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise UnsupportedModelError(
                f"{self.path}: a GGUF split into parts",
                value=parts,
                limit="one file",
                remedy="merge the parts with llama-gguf-split --merge",
            )
        records = [self.tensor(index) for index in range(tensor_count)]
        end = self.at
        data_offset = end + -end % alignment
        tensors = self.place(records, data_offset, alignment)
        digest = hashlib.sha256(memoryview(self.data)[:end]).hexdigest()
        return GGUFHeader(version, metadata, tensors, digest, data_offset)

    def preamble(self) -> int:
        magic = self.take(4, "magic")
        if magic != b"GGUF":
            raise self.lie("magic", magic, "b'GGUF'")
        version = self.u32("version")
        if version in (2 << 24, 3 << 24):
            raise UnsupportedModelError(
                f"{self.path}: a big-endian GGUF file", remedy="convert it to little endian"
            )
        if version not in (2, 3):
            raise self.lie("version", version, "2 or 3")
        return version

    def alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", 32)
        if type(value) is not int or not 1 <= value <= 1 << 16 or value & (value - 1):
            raise self.lie("general.alignment", value, "a power of two up to 65536")
        return value

    def tensor(self, index: int) -> tuple[str, tuple[int, ...], str, int]:
        name = self.string(f"tensor {index} name", MOST_NAME_BYTES)
        field = f"tensor {name!r}"
        dims = self.u32(f"{field} dimensions")
        if not 1 <= dims <= 4:
            raise self.lie(f"{field} dimensions", dims, "1 to 4")
        shape = tuple(reversed(struct.unpack(f"<{dims}Q", self.take(8 * dims, f"{field} shape"))))
        check_shape(self.path, field, shape)
        code = self.u32(f"{field} type")
        if code not in TENSOR_TYPES:
            raise self.lie(f"{field} type", code, "a known tensor type code")
        return name, shape, TENSOR_TYPES[code], self.u64(f"{field} offset")

    def place(
        self, records: list[tuple[str, tuple[int, ...], str, int]], data_offset: int, alignment: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, dtype, offset in records:
            field = f"tensor {name!r}"
            if name in tensors:
                raise self.lie("tensor names", f"{name!r} twice", "unique names")
            if dtype not in BLOCK:
                raise unsupported_dtype(self.path, name, dtype.upper(), BLOCK)
            if shape[-1] % BLOCK[dtype].block_size:
                expected = f"rows of whole {BLOCK[dtype].block_size}-value blocks ({dtype})"
                raise self.lie(f"{field} shape", shape, expected)
            if offset % alignment:
                raise self.lie(f"{field} offset", offset, f"a multiple of {alignment}")
            nbytes = tensor_nbytes(dtype, shape)
            tensors[name] = TensorInfo(name, shape, dtype, data_offset + offset, nbytes, self.path)
        check_layout(tensors.values(), self.path, self.size)
        return tensors

    # Values ----------------------------------------------------------------------------------

    def value(self, field: str) -> Any:
        code = self.u32(f"{field} type")
        if code == STRING:
            return self.string(field, MOST_STRING_BYTES)
        if code == ARRAY:
            return self.array(field, depth=1)
        if code == BOOL:
            return bool(self.flags(field, 1)[0])
        return self.numbers(field, code, 1)[0].item()

    def array(self, field: str, depth: int) -> Any:
        code = self.u32(f"{field} item type")
        if code == STRING:
            return self.strings(field, self.count(f"{field} length", 8, MOST_ITEMS))
        if code == ARRAY:
            if depth == MOST_ARRAY_DEPTH:
                raise self.lie(f"{field} depth", depth + 1, f"at most {MOST_ARRAY_DEPTH}")
            count = self.count(f"{field} length", 12, self.inner_arrays_left)
            self.inner_arrays_left -= count
            return [self.array(f"{field}[{i}]", depth + 1) for i in range(count)]
        if code == BOOL:
            return self.flags(field, self.count(f"{field} length", 1, MOST_ITEMS))
        if code not in NUMBERS:
            raise self.lie(f"{field} item type", code, "a value type code, 0 to 12")
        width = np.dtype(NUMBERS[code]).itemsize
        return self.numbers(field, code, self.count(f"{field} length", width, MOST_ITEMS))

    def numbers(self, field: str, code: int, count: int) -> Any:
        if code not in NUMBERS:
            raise self.lie(f"{field} type", code, "a value type code, 0 to 12")
        dtype = np.dtype(NUMBERS[code])
        return np.frombuffer(self.take(dtype.itemsize * count, field), dtype)

    def flags(self, field: str, count: int) -> Any:
        raw = np.frombuffer(self.take(count, field), np.uint8)
        if raw.size and raw.max() > 1:
            raise self.lie(field, int(raw.max()), "a bool, 0 or 1")
        return raw.view(np.bool_)

    def string(self, field: str, most: int) -> str:
        length = self.u64(f"{field} length")
        if length > most:
            raise self.lie(f"{field} length", length, f"at most {most} bytes")
        raw = self.take(length, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.lie(field, raw[:32], "UTF-8") from None

    def strings(self, field: str, count: int) -> LazyStrings:
        """Walk the extents. The inner loop is all that a vocabulary costs."""
        start = at = self.at
        length_at = _U64.unpack_from
        data, have = self.data, len(self.data)
        left = count
        while left:
            try:
                while left:
                    length = length_at(data, at)[0]
                    if length > have - at - 8:
                        break
                    at += 8 + length
                    left -= 1
            except struct.error:
                length = 0  # not even the length is in the buffer yet
            if left:
                item = f"{field}[{count - left}]"
                if length > MOST_STRING_BYTES:
                    raise self.lie(f"{item} length", length, f"at most {MOST_STRING_BYTES} bytes")
                self.need(at, 8 + length, item)
                data, have = self.data, len(self.data)
        self.at = at
        return LazyStrings(self.path, field, data[start:at], count)

    # Bytes -----------------------------------------------------------------------------------

    def count(self, field: str, least_bytes: int, most: int) -> int:
        """A count of things of at least `least_bytes` each, which must fit what is left."""
        value = self.u64(field)
        fits = (self.size - self.at) // least_bytes
        if value > min(fits, most):
            what = f"at most {most}" if most <= fits else f"at most {fits}, what the file can hold"
            raise self.lie(field, value, what)
        return value

    def u32(self, field: str) -> int:
        value: int = _U32.unpack(self.take(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack(self.take(8, field))[0]
        return value

    def take(self, nbytes: int, field: str) -> bytes:
        end = self.at + nbytes
        if end > len(self.data):
            self.need(self.at, nbytes, field)
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def need(self, at: int, nbytes: int, field: str) -> None:
        """Read on until `data` holds [at, at + nbytes)."""
        end = at + nbytes
        if end > self.size:
            raise self.lie(field, f"{self.size - at} bytes", f"{nbytes} bytes before the file ends")
        if end > MOST_HEADER_BYTES:
            raise self.lie(f"{field} end", end, f"a header of at most {MOST_HEADER_BYTES} bytes")
        target = min(max(end, 2 * len(self.data), FIRST_READ_BYTES), self.size)
        self.data += self.file.read(target - len(self.data))
        if len(self.data) < end:
            raise self.lie(field, f"{len(self.data)} bytes", f"{end} bytes; the file is changing")

    def lie(self, field: str, found: object, expected: str) -> ModelFileError:
        return ModelFileError(self.path, field, found=found, expected=expected)
