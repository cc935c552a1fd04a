"""The device's own thread: steps run in the order they are launched, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from octavo.base.step import StepPlan, StepResult


class Launched:
    """A step on its way. `result` waits for it."""

    __slots__ = ("_done", "_error", "_result", "plan")

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self._done = threading.Lock()
        self._done.acquire()
        self._result: StepResult | None = None
        self._error: BaseException | None = None

    def run(self, step: Callable[[StepPlan], StepResult]) -> None:
        try:
            self._result = step(self.plan)
        except BaseException as error:  # carried to the loop
            self._error = error
        self._done.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether the step has ended within the time."""
        if not self._done.acquire(timeout=timeout_s):
            return False
        self._done.release()
        return True

    def result(self) -> StepResult:
        """The step's result; raises what the step raised."""
        self.wait(-1)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class DeviceThread:
    """Runs `step` on its own thread. The caller plans the next step meanwhile."""

    def __init__(self, step: Callable[[StepPlan], StepResult]) -> None:
        self._step = step
        self._queue: SimpleQueue[Launched | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="octavo-device", daemon=True)
        self._thread.start()

    def launch(self, plan: StepPlan) -> Launched:
        """Hand over a plan; returns at once."""
        launched = Launched(plan)
        self._queue.put(launched)
        return launched

    def close(self) -> None:
        """Let launched steps finish, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (launched := self._queue.get()) is not None:
            launched.run(self._step)
