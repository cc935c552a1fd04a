"""Rebuilt tokenizers on disk, by content.

An entry is the JSON that `tokenizers` reads, a line feed, and the SHA-256 of the JSON in hex. An
entry that is cut short or altered is taken as absent.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "octavo-tokenizer-1"  # change it whenever the same metadata is rebuilt differently
_DIGEST_CHARS = 64


def content_key(meta: Mapping[str, Any], content_id: str) -> str:
    """SHA-256 in hex over all tokenizer metadata and our own format.

    Every value goes in with its name, kind and length, so that no two sets of values look alike.
    """
    digest = hashlib.sha256()

    def put(data: bytes | memoryview) -> None:
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)

    put(FORMAT.encode())
    for name in sorted(key for key in meta if key.startswith("tokenizer.ggml.")):
        put(name.encode())
        for part in _parts(meta[name], content_id):
            put(part)
    return digest.hexdigest()


def _parts(value: Any, content_id: str) -> list[bytes | memoryview]:
    if isinstance(value, (str, int, float, bool, np.generic)):
        scalar = value.item() if isinstance(value, np.generic) else value
        return [b"scalar", repr(scalar).encode()]
    if isinstance(value, np.ndarray):
        return [b"array", value.dtype.str.encode(), np.ascontiguousarray(value).tobytes()]
    buffer = getattr(value, "buffer", None)  # a lazy array that shows its bytes in the file
    if isinstance(buffer, (bytes, memoryview)):
        return [b"buffer", str(len(value)).encode(), memoryview(buffer).cast("B")]
    if content_id:
        return [b"content", str(len(value)).encode(), content_id.encode()]
    items = [str(item).encode("utf-8", "surrogatepass") for item in value]
    lengths = np.fromiter(map(len, items), np.int64, len(items)).tobytes()
    return [b"items", lengths, b"".join(items)]


def read(cache_dir: Path, key: str) -> bytes | None:
    """The JSON under `key`, or None if there is none or it is damaged."""
    try:
        data = _path(cache_dir, key).read_bytes()
    except OSError:
        return None
    text, mark = data[: -_DIGEST_CHARS - 1], data[-_DIGEST_CHARS - 1 :]
    return text if mark == b"\n" + hashlib.sha256(text).hexdigest().encode() else None


def write(cache_dir: Path, key: str, text: bytes) -> None:
    """Store `text` under `key`, whole or not at all. A cache that can't be written is no error."""
    path = _path(cache_dir, key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{key[:16]}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
                file.write(b"\n" + hashlib.sha256(text).hexdigest().encode())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _path(cache_dir: Path, key: str) -> Path:
    return cache_dir / "tokenizers" / f"{key}.json"
