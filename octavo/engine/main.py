"""Runs an engine: start it, say so, loop, say why it ended. The entry of the engine process."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.base.errors import OctavoError
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.engine.channel import EngineEnd, SocketEnd
from octavo.engine.messages import Dead, Ready, Starting
from octavo.obs import set_up_logging

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartOrder:
    """model_path: what `args.model` resolved to. check: prove invariants after every step."""

    args: EngineArgs
    model_path: Path
    check: bool = False


def run_engine(order: StartOrder, end: EngineEnd) -> None:
    """Build the engine, then serve messages until `Shutdown`. The last message sent is `Dead`."""
    started = False
    try:
        core = build_engine(
            order.args,
            order.model_path,
            end,
            check=order.check,
            progress=lambda phase, took_ms: end.send(Starting(phase, took_ms)),
        )
        try:
            end.send(Ready(core.info))
            started = True
            core.run()
            cause = "the engine was shut down"
        finally:
            core.close()
    except OctavoError as error:
        cause = str(error)
    except Exception as error:
        log.exception("the engine failed")
        cause = f"{type(error).__name__}: {error}"
    end.send(Dead(cause, started))


def main() -> None:
    """Read the order from stdin (one line of JSON) and run; end when stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the client drains and then says Shutdown
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    folder = Path(order["to_engine"].removeprefix("ipc://")).parent
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    set_up_logging(order["log_level"], process="engine")
    args = msgspec.convert(order["args"], EngineArgs)
    end = SocketEnd(order["to_engine"], order["from_engine"])
    run_engine(StartOrder(args, Path(order["model_path"])), end)
    end.close()


def _end_with_parent(folder: Path) -> None:
    """The parent holds the other end of stdin: when it is gone, nobody needs this engine.

    folder: the sockets', which the parent can't remove any more.
    """
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
