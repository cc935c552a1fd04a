"""What an engine is to the comparison, and what every adapter shares."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from figures import Reply, Request
from load import Traffic

Measure = Literal["latency", "throughput", "served"]
MEASURES: tuple[Measure, ...] = ("latency", "throughput", "served")

Command = list[str | Path]
INSTALL_S = 3600.0
START_S = 900.0


class Unavailable(Exception):
    """An engine that cannot be measured here; the message says why, for the report."""


@dataclass(frozen=True)
class Setting:
    """What all engines of one comparison get.

    gguf: the model's file. hf: the same weights as a bf16 Hugging Face folder.
    peers: every engine's own folder is below it. only: what is measured.
    """

    gguf: Path
    hf: Path
    peers: Path
    threads: int
    traffic: Traffic
    only: frozenset[Measure] = frozenset(MEASURES)


@dataclass(frozen=True)
class About:
    """What the report says of an engine that is there.

    way: how it was driven. notes: what a reader must know to compare its figures with others'.
    """

    version: str
    weights: str
    way: Literal["HTTP", "in process", "own tool"]
    measures: frozenset[Measure] = frozenset(MEASURES)
    notes: Sequence[str] = field(default_factory=tuple)


class Session(Protocol):
    """A started engine that has answered a first request. load_s: from command to that answer."""

    load_s: float

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """All requests at once; their replies in the same order."""

    def close(self) -> None: ...


class Engine(Protocol):
    """bf16: whether it computes with the bf16 weights (its ratios are to octavo's bf16 row)."""

    name: str
    bf16: bool

    def install(self, setting: Setting) -> About:
        """Make it ready to start, once per machine. Raises Unavailable."""

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        """Start it, measure what `setting.only` and its `About` allow, stop it."""


def run(command: Sequence[str | Path], what: str, timeout_s: float = INSTALL_S, **more: Any) -> str:
    """A command's output. Raises Unavailable with the end of what it wrote if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **more,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from None
    if done.returncode:
        raise Unavailable(
            f"{what}: exit {done.returncode}: {last_lines(done.stderr or done.stdout)}"
        )
    return str(done.stdout)


def last_lines(text: str, count: int = 3) -> str:
    """The last lines that say something, on one line."""
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith("WARNING")]
    return " | ".join(telling[-count:])[-600:]


def tool(name: str) -> str:
    """A build tool from octavo's own environment, or else from the PATH. Raises Unavailable."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


def pip_environment(folder: Path, *steps: Sequence[str]) -> Path:
    """A venv in `folder` with each step's packages installed in turn; its python.

    A step is pip's arguments. A venv that was made of the same steps before is left as it is; one
    made of others is made anew. Raises Unavailable.
    """
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join(" ".join(step) for step in steps)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", folder], "venv")
    for step in steps:
        pip: Command = [python, "-m", "pip", "--disable-pip-version-check", *step]
        run(pip, f"pip {' '.join(step)}")
    stamp.write_text(wanted)
    return python


def package_versions(python: Path, names: Sequence[str]) -> str:
    """`name version` of each, as the environment of `python` has them."""
    code = (
        "import importlib.metadata as m, sys\n"
        "print(', '.join(f'{name} {m.version(name)}' for name in sys.argv[1:]))"
    )
    return run([python, "-c", code, *names], "versions", 60).strip()


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the peer's own settings, offline and without telemetry."""
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **quiet, **extra}
