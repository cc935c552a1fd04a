"""The shape of the house, held by tests: who may import whom, and that the core is torch-free."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "octavo"

# Tier by tier; a room may import rooms of earlier tiers, never one of its own tier.
TIERS = (
    ("base",),
    ("models", "obs", "text", "grammar"),
    ("program", "weights"),
    ("memory",),
    ("config",),
    ("kv", "backends"),
    ("sched", "sampling", "lora", "draft"),
    ("runner",),
    ("engine",),
    ("explain", "client"),
    ("server",),
    ("bench",),
    ("cli",),
)
TIER = {room: index for index, rooms in enumerate(TIERS) for room in rooms}
HEAVY = {"torch", "triton", "transformers"}
HEAVY_ROOM = ("backends", "cuda")


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names.append(node.module or "")
    return names


def _modules() -> list[Path]:
    roots = {"__init__.py", "__main__.py"}  # the package's front may import any room
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (path.parent == PACKAGE and path.name in roots)
    ]


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = _room(path)
    assert room in TIER, f"{room} is not in the table of rooms"
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] != "octavo" or len(parts) < 2:
            continue
        other = parts[1]
        assert other in TIER, f"{path} imports {name}, which is no room"
        allowed = other == room or TIER[other] < TIER[room]
        assert allowed, f"{room} may not import {other} ({name})"


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_in_the_cuda_backend(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[:2] == HEAVY_ROOM:
        return
    assert not HEAVY & {name.split(".")[0] for name in _imports(path)}


def test_backends_do_not_import_each_other() -> None:
    for path in sorted((PACKAGE / "backends").rglob("*.py")):
        own = path.relative_to(PACKAGE / "backends").parts[0]
        for name in _imports(path):
            parts = name.split(".")
            if parts[:2] == ["octavo", "backends"] and len(parts) > 2:
                assert parts[2] in (own, "api"), f"{path} imports {name}"


def test_importing_every_room_loads_no_torch() -> None:
    names = [
        "octavo." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in _modules()
        if path.relative_to(PACKAGE).parts[:2] != HEAVY_ROOM and path.name != "__main__.py"
    ]
    names = [name.removesuffix(".__init__") for name in names]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
