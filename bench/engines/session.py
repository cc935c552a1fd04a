"""Started engines: a server behind HTTP, or a worker in the engine's own environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from client import Completions, RequestFailed
from engines.api import START_S, Unavailable, environment, last_lines
from figures import Chunk, Reply, Request
from load import Traffic, drive, schedule

FIRST = Request((1000, 2000, 3000, 4000), 1)
BENCH = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Process:
    """A child in a process group of its own, its output in a log. Whoever starts it stops it."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, extra: Mapping[str, str], **more: Any
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self.begun_s = time.perf_counter()
        with log.open("wb") as file:
            self.child = subprocess.Popen(
                [str(part) for part in command],
                stderr=file,
                env=environment(extra),
                start_new_session=True,
                **({"stdout": file} | more),
            )

    def check(self) -> None:
        """Raises Unavailable if it has ended."""
        if self.child.poll() is not None:
            text = self.log.read_text(errors="replace")
            raise Unavailable(f"ended with {self.child.returncode}: {last_lines(text)}")

    def stop(self) -> None:
        """Ask it to end; after a while end its whole group."""
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(30)
        with contextlib.suppress(ProcessLookupError):  # workers it may have left
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


class ServerSession:
    """An OpenAI server. command takes the port; extra: see `Completions`."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str | Path]],
        model: str,
        extra: Mapping[str, Any],
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self._model, self._extra = model, extra
        self._url = f"http://127.0.0.1:{port}"
        self._process = Process(command(port), log, env or {})
        try:
            asyncio.run(self._until_ready())
        except BaseException:
            self.close()
            raise
        self.load_s = time.perf_counter() - self._process.begun_s

    def _client(self) -> Completions:
        return Completions(self._url, self._model, self._extra)

    async def _until_ready(self) -> None:
        """Ask for one token until it comes."""
        async with self._client() as client:
            while True:
                self._process.check()
                try:
                    await client.complete(FIRST)
                    return
                except RequestFailed as error:
                    if time.perf_counter() - self._process.begun_s > START_S:
                        raise Unavailable(f"no answer in {START_S:.0f} s: {error}") from None
                    if str(error).startswith("status 4"):
                        raise Unavailable(f"refuses the request: {error}") from None
                await asyncio.sleep(0.01)

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        async def run() -> list[Reply]:
            async with self._client() as client:
                return list(await asyncio.gather(*map(client.complete, requests)))

        try:
            return asyncio.run(run())
        except RequestFailed:
            self._process.check()  # a server that ended says more than a refused connection
            raise

    def serve(self, traffic: Traffic, seed: int) -> tuple[list[Reply], list[str], float]:
        """Open-loop traffic; see `load.drive`."""

        async def run() -> tuple[list[Reply], list[str], float]:
            async with self._client() as client:
                return await drive(client, schedule(traffic, seed))

        found = asyncio.run(run())
        self._process.check()
        return found

    def close(self) -> None:
        self._process.stop()


class WorkerSession:
    """An engine in a process of its own that `engines.worker` drives, without HTTP."""

    def __init__(
        self,
        python: Path,
        module: str,
        arguments: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        command = [python, "-m", f"engines.{module}", *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": BENCH}
        self._process = Process(command, log, env or {}, **pipes)
        try:
            self.complete([FIRST])
        except BaseException:
            self.close()
            raise
        self.load_s = time.perf_counter() - self._process.begun_s

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        child = self._process.child
        assert child.stdin is not None and child.stdout is not None
        batch = [{"prompt": list(item.prompt), "tokens": item.tokens} for item in requests]
        late = threading.Timer(START_S, child.kill)
        late.start()
        try:
            child.stdin.write(json.dumps(batch) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            self._process.check()
            raise Unavailable("the worker closed its output")
        answer = json.loads(line)
        return [
            worker_reply(request, answer["begun_s"], times)
            for request, times in zip(requests, answer["token_s"], strict=True)
        ]

    def close(self) -> None:
        child = self._process.child
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()  # ends its loop
        self._process.stop()


def worker_reply(request: Request, begun_s: float, times: Sequence[float]) -> Reply:
    """A reply of which each token's time is known. Raises RequestFailed for a wrong number."""
    if len(times) != request.tokens:
        raise RequestFailed(f"{len(times)} tokens instead of {request.tokens}")
    chunks = tuple(Chunk(at_s, 1) for at_s in times)
    return Reply(begun_s, chunks, request.tokens, len(request.prompt))
