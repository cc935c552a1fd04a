"""A server's life: keys, health, clients that leave, an engine that dies, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ServerArgs
from octavo.server.serve import _listen
from tests.support.server import Server, serving, start

LONG = {
    "model": "tiny",
    "prompt": "hello",
    "max_tokens": 450,
    "ignore_eos": True,
    "temperature": 1.0,
    "seed": 1,
}


def test_api_keys_guard_every_route_but_three(tiny: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfrom-file\n")
    flags = ("--api-key", "one", "--api-key", "two", "--api-key-file", str(keys))
    with serving(tiny, *flags, "--served-model-name", "tiny") as server:
        for path in ("/live", "/health", "/version"):
            assert server.request(path)[0] == 200
        for path in (
            "/v1/models",
            "/metrics",
            "/ready",
            "/tokenize",
            "/v1/completions",
            "/nothing",
        ):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic one"}):
                status, reply = server.json(path, headers=headers)
                assert status == 401
                assert reply["error"]["code"] == "invalid_api_key"
        for key in ("one", "two", "from-file"):
            headers = {"authorization": f"Bearer {key}"}
            assert server.request("/v1/models", headers=headers)[0] == 200


def test_cors(tiny: str) -> None:
    with serving(tiny, "--allowed-origins", "http://a.example") as server:
        _, headers, _ = server.request("/health", headers={"origin": "http://a.example"})
        assert headers["access-control-allow-origin"] == "http://a.example"
        _, headers, _ = server.request("/health", headers={"origin": "http://b.example"})
        assert "access-control-allow-origin" not in headers


def test_it_listens_before_it_is_ready(tiny: str) -> None:
    server = start(tiny, wait=False)
    try:
        deadline = time.monotonic() + 30
        seen: set[tuple[int, int]] = set()
        while (200, 200) not in seen:
            assert time.monotonic() < deadline
            try:
                seen.add((server.request("/live")[0], server.request("/ready")[0]))
            except OSError:
                continue
        assert (200, 503) in seen, "it was live before it was ready"
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: Server, streamed: bool) -> None:
    server.wait_idle()
    before = server.metric("octavo_requests_finished_total")
    raw = json.dumps({**LONG, "stream": streamed}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n"
    head += "content-type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + raw)
        if streamed:
            assert connection.recv(65536)
        else:
            while server.metric("octavo_requests_running") == 0:
                time.sleep(0.001)
    server.wait_idle(5)
    assert server.metric("octavo_requests_finished_total") == before + 1
    log = server.log.read_text()
    assert "client gone" in log
    assert "wasted_tokens=" in log


def test_a_dead_engine_is_503_with_its_cause(tiny: str) -> None:
    with serving(tiny, "--served-model-name", "tiny") as server:
        outcome: list[Any] = []

        def ask() -> None:
            outcome.append(server.request("/v1/completions", {**LONG, "stream": True}))

        asking = threading.Thread(target=ask)
        asking.start()
        while server.metric("octavo_requests_running") == 0 and asking.is_alive():
            time.sleep(0.001)
        os.kill(_engine_pid(server), signal.SIGKILL)
        asking.join(10)
        status, _, data = outcome[0]
        if status == 200:  # it had begun: the stream ends with an error, then [DONE]
            *_, error, done = [line for line in data.split(b"\n\n") if line]
            assert b'"error"' in error
            assert done == b"data: [DONE]"
        else:
            assert status == 503
        deadline = time.monotonic() + 5
        while server.request("/health")[0] == 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        status, body = server.json("/health")
        assert status == 503
        assert body["status"] == "dead"
        assert "SIGKILL" in body["cause"] or "signal 9" in body["cause"]
        status, body = server.json("/v1/completions", {**LONG, "max_tokens": 3})
        assert status == 503
        assert body["error"]["message"]
        assert server.metric("octavo_up") == 0
        assert server.stop() == 0


def test_a_frozen_engine_turns_health_and_recovers(tiny: str) -> None:
    """R21"""
    with serving(tiny, "--served-model-name", "tiny") as server:
        pid = _engine_pid(server)
        os.kill(pid, signal.SIGSTOP)
        outcome: list[tuple[int, dict[str, str], bytes]] = []
        asking = threading.Thread(
            target=lambda: outcome.append(
                server.request("/v1/completions", {**LONG, "max_tokens": 5})
            )
        )
        asking.start()
        started = time.monotonic()
        status, body = server.json("/health")
        assert status == 503
        assert time.monotonic() - started < 5  # the bound that a health check is promised
        assert body["status"] == "stalled"
        assert "step" in body["cause"]
        assert server.request("/live")[0] == 200
        os.kill(pid, signal.SIGCONT)
        assert server.request("/health")[0] == 200
        asking.join(10)
        assert outcome[0][0] == 200


def _engine_pid(server: Server) -> int:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    pids = [int(pid) for pid in children.split()]
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        pids += [int(pid) for pid in (task / "children").read_text().split()]
    assert len(set(pids)) == 1, pids
    return pids[0]


def test_sigterm_drains_then_ends(tiny: str) -> None:
    server = start(tiny, "--served-model-name", "tiny")
    outcome: list[tuple[int, dict[str, str], bytes]] = []

    def ask() -> None:
        outcome.append(server.request("/v1/completions", {**LONG, "stream": True}))

    asking = threading.Thread(target=ask)
    asking.start()
    while server.metric("octavo_requests_running") == 0:
        time.sleep(0.001)
    assert server.stop() == 0
    asking.join(10)
    status, _, data = outcome[0]
    assert status == 200
    assert b'"finish_reason":"length"' in data
    assert data.endswith(b"data: [DONE]\n\n")


def test_sigterm_cuts_what_does_not_end_in_time(tiny: str) -> None:
    server = start(tiny, "--served-model-name", "tiny", "--drain-timeout-s", "0")
    outcome: list[tuple[int, dict[str, str], bytes]] = []

    def ask() -> None:
        outcome.append(server.request("/v1/completions", {**LONG, "stream": True}))

    asking = threading.Thread(target=ask)
    asking.start()
    while server.metric("octavo_requests_running") == 0:
        time.sleep(0.001)
    assert server.stop() == 0
    asking.join(10)
    if outcome[0][2]:
        assert outcome[0][2].endswith(b"data: [DONE]\n\n")
        assert outcome[0][2].count(b'"finish_reason":"') == 1
    assert "drained cut=" in server.log.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-model-len", "100000"), "--max-model-len"),
        (("--block-size", "3"), "--block-size"),
        (("--kv-cache-memory-bytes", "1"), "--kv-cache-memory-bytes"),
        (("--isa", "sse9"), "--isa"),
        (("--api-key-file", "/nonexistent"), "--api-key-file"),
        (("--max-model-length", "5"), "did you mean --max-model-len"),
        (("--log-level", "loud"), "--log-level"),
        (("--max-body-bytes", "-1"), "--max-body-bytes"),
        (("--drain-timeout-s", "-5"), "--drain-timeout-s"),
        (("--request-read-timeout-s", "-1"), "--request-read-timeout-s"),
        (("--served-model-name", ""), "--served-model-name"),
        (("--chat-template", "{{ x"), "--chat-template"),
        (("--port", "99999"), "--port"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_wrong_option_is_one_line_without_a_traceback(
    tiny: str, flags: tuple[str, ...], said: str
) -> None:
    command = [sys.executable, "-m", "octavo", "serve", tiny, "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_does_not_wait_for_an_acknowledgement() -> None:
    """Connections inherit TCP_NODELAY: asyncio sets it on sockets of its own making only."""
    with (
        _listen(ServerArgs(port=0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert client.fileno() >= 0
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
