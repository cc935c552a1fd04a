"""A real `octavo serve` in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 60


@dataclass
class Server:
    """base: http://host:port. log: where its stderr goes."""

    base: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    key: str | None = None

    def request(
        self,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        method: str | None = None,
        timeout: float = 60,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body; an error status is no exception."""
        data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        sent = {"content-type": "application/json", **(headers or {})}
        if self.key is not None:
            sent.setdefault("authorization", f"Bearer {self.key}")
        request = urllib.request.Request(self.base + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, _lower(reply.headers), reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _lower(error.headers), error.read()

    def json(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        status, _, data = self.request(path, body, **options)
        return status, json.loads(data)

    def metric(self, name: str) -> float:
        """A metric's value; the sum over its labels."""
        _, _, page = self.request("/metrics")
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page.decode(), re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(float(value) for value in found)

    def wait_idle(self, timeout_s: float = 20) -> None:
        """Until no request runs or waits and every block is returned."""
        names = ("octavo_requests_running", "octavo_requests_waiting", "octavo_kv_blocks_used")
        deadline = time.monotonic() + timeout_s
        while any(self.metric(name) for name in names):
            assert time.monotonic() < deadline, "the engine does not come to rest"
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(40)


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def start(model: str, *flags: str, key: str | None = None, wait: bool = True) -> Server:
    port = free_port()
    fd, name = tempfile.mkstemp(suffix=".log")
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port), *flags]
    with os.fdopen(fd, "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    server = Server(f"http://127.0.0.1:{port}", port, process, Path(name), key)
    deadline = time.monotonic() + START_S
    while wait:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if server.request("/health")[0] == 200:
                break
        assert process.poll() is None, f"the server ended: {server.log.read_text()}"
        assert time.monotonic() < deadline, f"the server is not ready: {server.log.read_text()}"
        time.sleep(0.03)
    return server


@contextlib.contextmanager
def serving(model: str, *flags: str, key: str | None = None) -> Iterator[Server]:
    server = start(model, *flags, key=key)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(10)
        server.log.unlink(missing_ok=True)
