"""Start-up, memory and idle cost of `octavo serve`.

    python bench/footprint.py [MODEL] [--runs 3]

Start: from the command to the first streamed token. Memory: the sum of the PSS of all processes
when ready and after 20 requests (KV blocks that were touched are inside both figures). Idle: CPU
time of all processes over five idle seconds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return sorted(set(found))


def pss_mb(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[0])
    return total / 1000


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def complete(port: int, model: str, tokens: int) -> None:
    """Read a stream's first event."""
    body = {"model": model, "prompt": "The sea", "max_tokens": tokens, "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.readline().startswith(b"data: ")
        reply.read()


def measure(model: str) -> dict[str, float]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    started = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", model, "--port", str(port)],
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            try:
                complete(port, model, 1)
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.005)
        first_token_s = time.monotonic() - started
        pids = family(server.pid)
        ready_mb = pss_mb(pids)
        for _ in range(20):
            complete(port, model, 32)
        used_mb = pss_mb(pids)
        before = cpu_s(pids)
        time.sleep(5)
        idle = (cpu_s(pids) - before) / 5
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    return {
        "first_token_s": first_token_s,
        "pss_ready_mb": ready_mb,
        "pss_used_mb": used_mb,
        "idle_cpu_percent": 100 * idle,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs = [measure(options.model) for _ in range(options.runs)]
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"{name:<18} {median(values):8.2f}  (min {min(values):.2f}, max {max(values):.2f})")
    print(json.dumps({"model": options.model, "runs": runs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
