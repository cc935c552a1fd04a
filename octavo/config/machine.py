"""What this process may really use: cores, memory, limits of its control group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """cores: usable at once (affinity and cgroup quota). Sizes in bytes; None where unknown."""

    cores: int
    cores_online: int
    cpu_quota: float | None
    memory_total: int
    memory_available: int
    memory_limit: int | None
    huge_pages: str


def probe_machine() -> Machine:
    """Read affinity, cgroup v2/v1 limits, /proc/meminfo and the huge-page switch. Cheap."""
    info = _meminfo()
    limit = _cgroup_memory_limit()
    total = info.get("MemTotal", 0)
    available = info.get("MemAvailable", total)
    if limit is not None:
        available = min(available, max(0, limit - _cgroup_memory_used()))
    quota = _cgroup_cpu_quota()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = max(1, allowed or 1)
    if quota is not None:
        cores = max(1, min(cores, int(quota)))
    return Machine(
        cores=cores,
        cores_online=os.cpu_count() or 1,
        cpu_quota=quota,
        memory_total=total,
        memory_available=available,
        memory_limit=limit,
        huge_pages=_huge_pages(),
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _meminfo() -> dict[str, int]:
    sizes: dict[str, int] = {}
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            sizes[name] = int(number[0]) * 1024
    return sizes


def _cgroup_folder() -> Path:
    """The v2 folder of this process, or the root where it can't be told."""
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        if line.startswith("0::"):
            folder = _CGROUP / line[3:].lstrip("/")
            if folder.is_dir():
                return folder
    return _CGROUP


def _first_number(*paths: Path) -> int | None:
    for path in paths:
        text = _read(path)
        if text and text.isdigit():
            return int(text)
    return None


def _cgroup_memory_limit() -> int | None:
    found = _first_number(_cgroup_folder() / "memory.max", _CGROUP / "memory/memory.limit_in_bytes")
    return None if found is None or found >= 2**60 else found


def _cgroup_memory_used() -> int:
    used = _first_number(
        _cgroup_folder() / "memory.current", _CGROUP / "memory/memory.usage_in_bytes"
    )
    return used or 0


def _cgroup_cpu_quota() -> float | None:
    text = _read(_cgroup_folder() / "cpu.max")
    if text:
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    quota_us = _read(_CGROUP / "cpu/cpu.cfs_quota_us")
    period_us = _first_number(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota_us and quota_us.isdigit() and period_us:
        return int(quota_us) / period_us
    return None


def _huge_pages() -> str:
    """always, madvise, never or unknown: the transparent huge page switch."""
    text = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")) or ""
    if "[" not in text:
        return "unknown"
    return text[text.index("[") + 1 : text.index("]")]
