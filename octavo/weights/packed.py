"""Weights in the form that kernels read, kept on disk so that the next start skips the packing.

One file per model under `packed/` in the cache folder, named by a key over everything that decides
its bytes:

    magic, 16 bytes │ key, 32 │ bytes of weights, 8 │ checksum, 8 │ zeros to 4096 │ weights

A file appears whole, by renaming, or not at all; one that is short, altered or of another layout is
taken as absent and removed. The folder is bounded: what was used longest ago goes first. Removing
files or the whole folder at any time is harmless.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

HEADER_BYTES = 4096
MOST_BYTES = 16 * 2**30  # of all files together
_MAGIC = b"octavo packed 1\0"
_HEADER = struct.Struct("<16s32sQQ")
_SUFFIX = ".packed"
_PIECE_BYTES = 4 * 2**20
LEAST_BYTES = 16 * 2**20  # packing less takes no time worth a file
_FREE_SHARE = 2  # a file is written only if the disk has this many times its size free


def packed_key(*parts: str | int | bytes) -> bytes:
    """SHA-256 over the parts, each with its kind and length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(f"{type(part).__name__} {len(data)}\0".encode() + data)
    return digest.digest()


@dataclass(frozen=True)
class PackedFile:
    """A file with a whole header and the right length; the reader checks the sum and closes it."""

    path: Path
    fd: int
    checksum: int


class PackedCache:
    """The folder. Nothing here raises for a disk that can't be read or written: it is a cache."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes

    def open(self, key: bytes, nbytes: int) -> PackedFile | None:
        """The file with `nbytes` of weights under `key`, marked as used now, or None."""
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            header = os.pread(fd, _HEADER.size, 0)
            whole = os.fstat(fd).st_size == HEADER_BYTES + nbytes
            if whole and len(header) == _HEADER.size:
                magic, found_key, found_bytes, checksum = _HEADER.unpack(header)
                if (magic, found_key, found_bytes) == (_MAGIC, key, nbytes):
                    with suppress(OSError):
                        os.utime(path)
                    return PackedFile(path, fd, checksum)
        except OSError:
            pass
        os.close(fd)
        self.discard(key)
        return None

    def discard(self, key: bytes) -> None:
        """Remove a file that turned out to be damaged."""
        log.warning("removed a damaged file of packed weights: %s", self._path(key))
        with suppress(OSError):
            self._path(key).unlink()

    def store(self, key: bytes, weights: memoryview, checksum: int, stop: threading.Event) -> bool:
        """Write a file, whole or not at all; gives up at `stop`. Whether it is there now."""
        size = HEADER_BYTES + weights.nbytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if size > self._most_bytes or shutil.disk_usage(self.folder).free < _FREE_SHARE * size:
                return False
            self._make_room(size)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".part")
        except OSError as error:
            log.info("packed weights are not kept: %s", error)
            return False
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                header = _HEADER.pack(_MAGIC, key, weights.nbytes, checksum)
                file.write(header.ljust(HEADER_BYTES, b"\0"))
                for begin in range(0, weights.nbytes, _PIECE_BYTES):
                    if stop.is_set():
                        raise InterruptedError
                    piece = weights[begin : begin + _PIECE_BYTES]
                    while piece.nbytes:
                        piece = piece[file.write(piece) :]
            Path(temporary).replace(self._path(key))
        except OSError as error:  # InterruptedError is one
            with suppress(OSError):
                Path(temporary).unlink()
            log.info("packed weights are not kept: %s", error or "the engine ends")
            return False
        return True

    def _make_room(self, size: int) -> None:
        """Remove what was left half-written, and the files unused for longest."""
        files = sorted(self._files(), key=lambda item: item[0])
        total = sum(nbytes for _, nbytes, _ in files) + size
        for _, nbytes, path in files:
            if path.suffix == _SUFFIX and total <= self._most_bytes:
                continue
            with suppress(OSError):
                path.unlink()
                total -= nbytes

    def _files(self) -> Iterable[tuple[float, int, Path]]:
        for path in self.folder.iterdir():
            with suppress(OSError):
                stat = path.stat()
                if path.suffix == _SUFFIX or (path.suffix == ".part" and _is_old(stat.st_mtime)):
                    yield stat.st_mtime, stat.st_size, path

    def _path(self, key: bytes) -> Path:
        return self.folder / f"{key.hex()}{_SUFFIX}"


def _is_old(mtime: float) -> bool:
    return time.time() - mtime > 3600


class PackedWriter:
    """Stores in the background. `close` before the weights' memory goes."""

    def __init__(self, cache: PackedCache, key: bytes, weights: memoryview, checksum: int) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=lambda: cache.store(key, weights, checksum, self._stop),
            name="octavo-packed",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Let it end, at once."""
        self._stop.set()
        self._thread.join()
