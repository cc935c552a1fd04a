"""The folder that keeps fetched models: atomic files, a record beside each, one writer at a time.

    <cache>/models/<key>/<file>         the model
    <cache>/models/<key>/<file>.json    its record: ref, sha256, nbytes, mtime_ns
    <cache>/models/<key>/.lock          held (flock) by the process that fetches

A file is written under a unique name, hashed on the way, and renamed when complete, so a reader
sees all of it or nothing. Later it is trusted by its record: the size and modification time it had
when it was hashed, and the hash that is expected. If only the time differs it is hashed again.
`verify` always hashes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from octavo.base.environment import read_environment
from octavo.base.errors import ModelError, ModelFileError, ModelNotFoundError
from octavo.weights.progress import Progress, Silent

CHUNK_BYTES = 1 << 20
RECORD_SUFFIX = ".json"
PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True)
class Record:
    """What is known of a cached file. ref: how to ask for it again."""

    ref: str
    sha256: str
    nbytes: int
    mtime_ns: int


@dataclass(frozen=True)
class CachedModel:
    """A model on disk. ref: the name that `resolve_model` takes."""

    ref: str
    path: Path
    nbytes: int


@dataclass(frozen=True)
class VerifiedFile:
    """A file that was hashed. recorded: False when there was no hash to compare with."""

    path: Path
    sha256: str
    nbytes: int
    recorded: bool


def models_folder() -> Path:
    return read_environment().cache_dir / "models"


def read_record(path: Path) -> Record | None:
    """The record beside `path`; None where there is none or it makes no sense."""
    try:
        fields = json.loads(_record_path(path).read_text("utf-8"))
        record = Record(**fields)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    types = (str, str, int, int)
    return record if tuple(map(type, asdict(record).values())) == types else None


def trusted(path: Path, sha256: str | None = None) -> bool:
    """Is `path` the file that was recorded (with `sha256`, if given)? Rehashes if touched."""
    record = read_record(path)
    if record is None or (sha256 is not None and record.sha256 != sha256):
        return False
    try:
        stat = path.stat()
    except OSError:
        return False
    if stat.st_size != record.nbytes:
        return False
    if stat.st_mtime_ns == record.mtime_ns:
        return True
    if hash_file(path) != record.sha256:
        return False
    _write_record(path, record.ref, record.sha256)
    return True


@contextmanager
def locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold `folder`'s lock; another process that fetches the same waits here."""
    make_folder(folder)
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.start(f"waiting for another process to fetch {folder.name}", None)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            finally:
                progress.done()
        yield


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{folder}: the cache folder cannot be made ({error.strerror})",
            remedy="set XDG_CACHE_HOME to a folder you can write to",
        ) from None


class Sink(Protocol):
    """Where a download is written."""

    def write(self, data: bytes, /) -> object: ...


class _HashingFile:
    """Writes to a file and hashes what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes, /) -> None:
        self.digest.update(data)
        self.file.write(data)


def store(
    path: Path, ref: str, write: Callable[[Sink], None], *, sha256: str | None = None
) -> None:
    """Put what `write` writes at `path`, with its record. Call with the folder's lock held.

    ModelFileError when the content does not hash to `sha256`; nothing is left behind then.
    """
    folder = path.parent
    for leftover in folder.glob(f".*{PARTIAL_SUFFIX}"):
        # Of a process that was killed: the lock is ours.
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
    fd, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.", suffix=PARTIAL_SUFFIX)
    partial = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            sink = _HashingFile(file)
            write(sink)
            file.flush()
            os.fsync(file.fileno())
        found = sink.digest.hexdigest()
        if sha256 is not None and found != sha256:
            raise ModelFileError(path, f"SHA-256 of {ref}", found=found, expected=sha256)
        partial.chmod(0o644)
        # The record goes last: a file without one is fetched again, never trusted.
        _record_path(path).unlink(missing_ok=True)
        partial.replace(path)
        _write_record(path, ref, found)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        partial.unlink(missing_ok=True)


def verify(path: Path, *, progress: Progress | None = None) -> tuple[VerifiedFile, ...]:
    """Hash `path` (every model file in it, for a folder) and compare with what is recorded.

    Octavo's cache keeps a record beside each file; the hub's cache names its files by their hash.
    ModelFileError for a difference. A file without a record is returned with recorded=False.
    """
    path = Path(path)
    if not path.exists():
        raise ModelNotFoundError(f"{path}: no such file or folder")
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in (".gguf", ".safetensors"))
    return tuple(_verify_file(file, progress or Silent()) for file in files)


def cached_models() -> list[CachedModel]:
    """The models in octavo's own cache, sorted by ref (those of the hub's cache: `hub.cached`)."""
    found: list[CachedModel] = []
    for record_path in models_folder().glob(f"**/*{RECORD_SUFFIX}"):
        path = record_path.with_name(record_path.name.removesuffix(RECORD_SUFFIX))
        record = read_record(path)
        if record is not None and path.is_file():
            found.append(CachedModel(record.ref, path, path.stat().st_size))
    return sorted(found, key=lambda model: model.ref)


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file as 64 hex digits."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            digest.update(buffer[:got])
            if progress is not None:
                progress.advance(got)
    return digest.hexdigest()


def _verify_file(path: Path, progress: Progress) -> VerifiedFile:
    record = read_record(path)
    blob = path.resolve().name
    hub_sha256 = blob if len(blob) == 64 and set(blob) <= set("0123456789abcdef") else None
    expected = record.sha256 if record else hub_sha256
    nbytes = path.stat().st_size
    progress.start(f"checking {path.name}", nbytes)
    try:
        found = hash_file(path, progress)
    finally:
        progress.done()
    if expected is not None and found != expected:
        raise ModelFileError(path, "SHA-256", found=found, expected=expected)
    return VerifiedFile(path, found, nbytes, expected is not None)


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + RECORD_SUFFIX)


def _write_record(path: Path, ref: str, sha256: str) -> None:
    stat = path.stat()
    record = Record(ref, sha256, stat.st_size, stat.st_mtime_ns)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".record")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
    Path(name).chmod(0o644)
    Path(name).replace(_record_path(path))
