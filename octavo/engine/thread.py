"""An engine on a thread of the client's own process: what `LLM` uses in a script."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

from octavo.base.errors import EngineError
from octavo.config import EngineArgs
from octavo.engine.channel import QueueEnd
from octavo.engine.handle import OnMessage
from octavo.engine.main import StartOrder, run_engine
from octavo.engine.messages import Shutdown, ToEngine


class ThreadEngine:
    """The engine on a thread of this process."""

    def __init__(self, args: EngineArgs, model_path: Path, on_message: OnMessage, *, check: bool):
        self._inbox: SimpleQueue[ToEngine] = SimpleQueue()
        end = QueueEnd(self._inbox, on_message)
        order = StartOrder(args=args, model_path=model_path, check=check)
        self._thread = threading.Thread(
            target=run_engine, args=(order, end), name="octavo-engine", daemon=True
        )
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None

    def send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def close(self, timeout_s: float = 30.0) -> None:
        self._inbox.put(Shutdown())
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise EngineError(f"the engine's thread has not ended within {timeout_s:g} s")
