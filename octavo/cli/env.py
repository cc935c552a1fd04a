"""octavo env"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from octavo.backends.native import available_isas, best_isa, load_library
from octavo.base.environment import read_environment
from octavo.base.errors import OctavoError
from octavo.cli.parser import Arguments
from octavo.config import probe_machine

_PACKAGES = ("octavo", "numpy", "tokenizers", "msgspec", "pyzmq", "starlette", "uvicorn", "torch")


def run(options: Arguments) -> int:
    """Print facts, one a line."""
    facts = gather()
    if options.json:
        print(msgspec.json.encode(facts).decode())
        return 0
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        print(f"{name:<{width}}  {'-' if shown is None else shown}")
    return 0


def gather() -> dict[str, Any]:
    """What the machine has and what octavo would use."""
    machine, environment = probe_machine(), read_environment()
    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores online": machine.cores_online,
        "cores usable": machine.cores,
        "cpu quota": machine.cpu_quota,
        "memory total": _gib(machine.memory_total),
        "memory available": _gib(machine.memory_available),
        "memory limit": None if machine.memory_limit is None else _gib(machine.memory_limit),
        "huge pages": machine.huge_pages,
    }
    try:
        library = load_library()
        best = best_isa(library)
        facts["instruction sets found"] = list(available_isas(library))
        facts["instruction set chosen"] = environment.isa or best
    except OctavoError as error:
        facts["native library"] = str(error)
    facts["cache"] = str(environment.cache_dir)
    facts["python"] = sys.version.split()[0]
    for name in _PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    return facts


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
