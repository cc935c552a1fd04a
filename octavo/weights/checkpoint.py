"""A checkpoint on disk: what it holds, and its bytes on request. Nothing stays mapped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from octavo.base.errors import ModelError, ModelFileError, ModelNotFoundError
from octavo.weights.gguf import read_gguf_header
from octavo.weights.safetensors import INDEX, SINGLE, read_safetensors_folder
from octavo.weights.tensor import MOST_JSON_BYTES, TensorInfo, read_json_file

# Bytes taken at the front, the middle and the end of each tensor for the content id.
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class _Stamp:
    """A file as it was when its header was checked; a read refuses another one."""

    header_sha256: str
    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(header_sha256: str, stat: os.stat_result) -> _Stamp:
        return _Stamp(header_sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino)


class Checkpoint:
    """A GGUF file or a safetensors folder whose headers have been checked.

    metadata: GGUF key/values (see `GGUFHeader`), or the parsed config.json.
    tensors: by the names that the file uses.
    """

    def __init__(
        self,
        path: Path,
        format: Literal["gguf", "safetensors"],
        metadata: dict[str, Any],
        tensors: dict[str, TensorInfo],
        header_sha256: Mapping[Path, str],
    ) -> None:
        self.path = path
        self.format = format
        self.metadata = metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._stamps = {f: _Stamp.of(digest, f.stat()) for f, digest in header_sha256.items()}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {self.format}, {len(self.tensors)} tensors)"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def read(self, name: str) -> NDArray[np.uint8]:
        """The raw bytes of a tensor: a fresh flat uint8 array of `nbytes`. KeyError if unknown."""
        out = np.empty(self.tensors[name].nbytes, np.uint8)
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: memoryview | NDArray[Any]) -> None:
        """Read a tensor's raw bytes into `out`: writable, contiguous, exactly `nbytes` long.

        ModelFileError when the file is no longer the one whose header was checked.
        """
        tensor = self.tensors[name]
        buffer: Any = out  # numpy's stubs declare the buffer protocol from Python 3.12 on only
        view = memoryview(buffer).cast("B")
        if view.nbytes != tensor.nbytes:
            raise ValueError(f"{name}: a buffer of {view.nbytes} bytes for {tensor.nbytes}")
        fd = self._open(tensor.file)
        try:
            _read_exactly(fd, tensor.offset, view, tensor)
        finally:
            os.close(fd)

    @cached_property
    def content_id(self) -> str:
        """64 hex digits that name the content: equal files have equal ids, wherever they lie.

        A SHA-256 over config.json, every header (names, shapes, types, GGUF metadata), file sizes,
        and up to three samples of 4 KiB of every tensor (small ones whole). A full hash would read
        the whole file before the first token (minutes for a large model) or need a cache that every
        machine fills for itself, and this id also names KV blocks shared between machines.
        Training, merging and requantising change values everywhere in the tensors they touch, so
        samples see them; a few bytes changed by hand between the samples are not seen. `verify()`
        is the check against tampering.
        """
        digest = hashlib.sha256(b"octavo content 1\0")
        if self.format == "safetensors":
            config = (self.path / "config.json").read_bytes()
            digest.update(len(config).to_bytes(8, "little") + config)
        by_file: dict[Path, list[TensorInfo]] = {file: [] for file in self._stamps}
        for tensor in self.tensors.values():
            by_file[tensor.file].append(tensor)
        for file, tensors in by_file.items():
            stamp = self._stamps[file]
            digest.update(f"{stamp.header_sha256} {stamp.size}\n".encode())
            fd = self._open(file)
            try:
                for tensor in tensors:
                    for begin, nbytes in _samples(tensor.nbytes):
                        sample = bytearray(nbytes)
                        _read_exactly(fd, tensor.offset + begin, memoryview(sample), tensor)
                        digest.update(sample)
            finally:
                os.close(fd)
        return digest.hexdigest()

    @property
    def local_id(self) -> str:
        """The content id and the files' times: for what this machine keeps for itself.

        It also changes when somebody edits bytes that the content id does not look at.
        """
        times = " ".join(str(stamp.mtime_ns) for stamp in self._stamps.values())
        return f"{self.content_id} {times}"

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, or {} where there is none (GGUF has none)."""
        return self._json("generation_config.json")

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json, or {} where there is none (GGUF has none)."""
        return self._json("tokenizer_config.json")

    @property
    def tokenizer_json(self) -> Path | None:
        return self._file("tokenizer.json")

    @cached_property
    def chat_template(self) -> str | None:
        """The jinja source: GGUF's tokenizer.chat_template, chat_template.jinja, or the entry of
        tokenizer_config.json (of a list of named templates the one called "default")."""
        if self.format == "gguf":
            return self._text("tokenizer.chat_template", self.metadata, self.path)
        if (path := self._file("chat_template.jinja")) is not None:
            return _read_text(path)
        config = self.tokenizer_config
        named = config.get("chat_template")
        if isinstance(named, list):
            defaults = [t for t in named if isinstance(t, dict) and t.get("name") == "default"]
            config = {"chat_template": defaults[0].get("template")} if defaults else {}
        return self._text("chat_template", config, self.path / "tokenizer_config.json")

    def _text(self, key: str, mapping: Mapping[str, Any], file: Path) -> str | None:
        value = mapping.get(key)
        if value is not None and not isinstance(value, str):
            raise ModelFileError(file, key, found=value, expected="a string")
        return value

    def _file(self, name: str) -> Path | None:
        path = self.path / name
        return path if self.format == "safetensors" and path.is_file() else None

    def _json(self, name: str) -> dict[str, Any]:
        path = self._file(name)
        return {} if path is None else read_json_file(path)

    def _open(self, file: Path) -> int:
        """A descriptor of `file`, which is still the file whose header was checked."""
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelFileError(
                file, "file", found=error.strerror or str(error), expected="a readable file"
            ) from None
        known = self._stamps[file]
        if _Stamp.of(known.header_sha256, os.fstat(fd)) != known:
            os.close(fd)
            raise ModelFileError(
                file, "file", found="another size, time or inode", expected="the file opened before"
            )
        return fd


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, a safetensors folder (config.json and weights), or a folder with one GGUF.

    Reads and checks headers only. ModelNotFoundError when nothing of the kind is there,
    ModelFileError for a file that lies, UnsupportedModelError for formats octavo does not read.
    """
    path = Path(path)
    if path.is_dir():
        if any((path / name).exists() for name in (SINGLE, INDEX)):
            return _open_safetensors(path)
        path = _only_gguf(path)
    elif not path.exists():
        raise ModelNotFoundError(f"{path}: no such file or folder")
    elif path.suffix == ".safetensors":
        raise ModelError(
            f"{path}: one safetensors file is not a whole model", remedy="pass its folder"
        )
    header = read_gguf_header(path)
    digests = {path: header.header_sha256}
    return Checkpoint(path, "gguf", header.metadata, header.tensors, digests)


def _open_safetensors(folder: Path) -> Checkpoint:
    config = folder / "config.json"
    if not config.exists():
        raise ModelFileError(folder, "config.json", found="no such file", expected="a model config")
    tensors, digests = read_safetensors_folder(folder)
    return Checkpoint(folder, "safetensors", read_json_file(config), tensors, digests)


def _only_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ModelNotFoundError(
            f"{folder}: no model here", limit=f"{SINGLE}, {INDEX} or one .gguf file"
        )
    if len(found) > 1:
        raise ModelError(
            f"{folder}: several GGUF files",
            value=[file.name for file in found],
            limit="one",
            remedy="pass the path of the file",
        )
    return found[0]


def _samples(nbytes: int) -> Iterable[tuple[int, int]]:
    """(begin, length) of what the content id looks at in a tensor of `nbytes`."""
    if nbytes <= 3 * SAMPLE_BYTES:
        return ((0, nbytes),)
    starts = (0, (nbytes - SAMPLE_BYTES) // 2, nbytes - SAMPLE_BYTES)
    return tuple((start, SAMPLE_BYTES) for start in starts)


def _read_exactly(fd: int, offset: int, view: memoryview, tensor: TensorInfo) -> None:
    done = 0
    while done < view.nbytes:
        try:
            got = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise ModelFileError(
                tensor.file,
                f"tensor {tensor.name!r}",
                found=error.strerror or str(error),
                expected="readable bytes",
            ) from None
        if got == 0:
            raise ModelFileError(
                tensor.file,
                f"tensor {tensor.name!r}",
                found=f"{done} bytes",
                expected=f"{view.nbytes} bytes",
            )
        done += got


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(MOST_JSON_BYTES + 1)
    if len(raw) > MOST_JSON_BYTES:
        raise ModelFileError(
            path, "size", found=path.stat().st_size, expected=f"at most {MOST_JSON_BYTES} bytes"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(
            path, "content", found=f"byte {error.start} is not UTF-8", expected="UTF-8"
        ) from None
