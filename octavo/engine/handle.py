"""The client's end: an engine in a process of its own (`thread` has the other kind).

Every handle calls `on_message` from a thread of its own, one message at a time and in order. The
last one is a `Dead`, exactly once, whatever ended the engine; also after `close`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import zmq

from octavo.config import EngineArgs
from octavo.engine.channel import unbounded
from octavo.engine.messages import Codec, Dead, FromEngine, Ready, Shutdown, ToEngine

OnMessage = Callable[[FromEngine], None]
_EXITED = b""  # no message is empty
_STDERR_LINES = 40


class EngineHandle(Protocol):
    """What a client holds of an engine. `send` may be called from any thread."""

    @property
    def pid(self) -> int | None:
        """The engine's own process; None on a thread of this one."""
        ...

    def send(self, message: ToEngine) -> None:
        """Hand over a message; to an engine that is gone it is lost (and `Dead` has come)."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """End the engine and wait for it. Safe to call twice."""
        ...


class ProcessEngine:
    """The engine in a process of its own.

    The child's stdin stays open as long as this process lives: when it closes, the child ends. Its
    stderr passes through, and the last lines explain a death that the engine could not report.
    """

    def __init__(
        self, args: EngineArgs, model_path: Path, on_message: OnMessage, *, log_level: str
    ):
        self._on_message = on_message
        self._folder = tempfile.mkdtemp(prefix="octavo-")  # mode 0700
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, True)
        self._context = zmq.Context(io_threads=1)
        self._lock = threading.Lock()
        self._codec = Codec(ToEngine)
        self._closed = False
        self._started = False
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        to_engine, from_engine = (f"ipc://{self._folder}/{name}" for name in ("to", "from"))
        self._outbox = unbounded(self._context.socket(zmq.PUSH))
        # The sender connects: a bound PUSH socket without a peer would block, a connecting one
        # queues until the child listens, and after its death until it is closed.
        self._outbox.setsockopt(zmq.RECONNECT_IVL, 5)
        self._outbox.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._outbox.connect(to_engine)
        inbox = unbounded(self._context.socket(zmq.PULL))
        inbox.bind(from_engine)
        self._process = _spawn(
            {
                "args": asdict(args),
                "model_path": str(model_path),
                "to_engine": to_engine,
                "from_engine": from_engine,
                "log_level": log_level,
            }
        )
        self._threads = [
            threading.Thread(target=self._watch, args=(from_engine,), daemon=True),
            threading.Thread(target=self._receive, args=(inbox,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        with self._lock:
            if not self._closed:
                self._outbox.send(self._codec.encode(message))

    def close(self, timeout_s: float = 5.0) -> None:
        self.send(Shutdown())
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for thread in self._threads:
            thread.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._outbox.close(linger=0)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._context.term()
        self._remove_folder()

    def _watch(self, address: str) -> None:
        """Pass the child's stderr on; when the child has ended, wake the receiver."""
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", "replace")
                self._stderr.append(line.rstrip())
                with contextlib.suppress(OSError, ValueError):  # our own stderr is closed
                    sys.stderr.write(line)
                    sys.stderr.flush()
        self._process.wait()
        with self._context.socket(zmq.PUSH) as waker:
            waker.setsockopt(zmq.LINGER, 1000)
            waker.connect(address)
            waker.send(_EXITED)

    def _receive(self, inbox: zmq.Socket[bytes]) -> None:
        codec = Codec(FromEngine)
        dead: Dead | None = None
        exited = False
        with inbox:
            while not exited or inbox.poll(50):  # after the exit: what was still on its way
                data = inbox.recv()
                if data == _EXITED:
                    exited = True
                    continue
                message = codec.decode(data)
                if isinstance(message, Dead):
                    dead = message
                    continue
                self._started = self._started or isinstance(message, Ready)
                self._on_message(message)
        self._on_message(dead or Dead(self._obituary(), self._started))

    def _obituary(self) -> str:
        """Why the child ended, when it could not say so itself."""
        code = self._process.returncode
        if code < 0:
            try:
                how = f"signal {signal.Signals(-code).name}"
            except ValueError:
                how = f"signal {-code}"
        else:
            how = f"exit status {code}"
        text = f"the engine process (pid {self.pid}) ended with {how}"
        if how == "signal SIGKILL":
            text += " (killed by hand, or by the kernel for want of memory)"
        last = next((line for line in reversed(self._stderr) if line.strip()), None)
        return text if last is None else f"{text}; its last words: {last.strip()}"


def _spawn(order: dict[str, object]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, so that Ctrl-C reaches this process only."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    code = f"import sys; sys.path.append({root!r}); from octavo.engine.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended already; the watcher will say why
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process
