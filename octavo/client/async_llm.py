"""`AsyncLLM`: one engine, many concurrent requests, each an async generator.

starting ──► ready ──► draining ──► dead
    └──────────┴──────────────────────┘        (dead: the cause is kept)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from octavo.base.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    OctavoError,
    RequestError,
)
from octavo.base.outputs import RequestOutput
from octavo.base.sampling_params import SamplingParams
from octavo.client.inputs import InputProcessor, load_input_processor, prompt_bytes
from octavo.client.outputs import OutputProcessor, RequestState
from octavo.client.start import engine_handle, locate, show_phase, token_table
from octavo.config import EngineArgs
from octavo.engine.handle import EngineHandle
from octavo.engine.messages import (
    Abort,
    AddRequest,
    Dead,
    Delta,
    EngineInfo,
    EngineStats,
    FromEngine,
    GetStats,
    Outputs,
    Ready,
    Refused,
    Starting,
    ToEngine,
    refusal_error,
)
from octavo.weights import Progress

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "draining", "dead"]
_ENCODE_IN_THREAD = 20_000  # characters; shorter texts are encoded faster than a thread is asked


class _Stream:
    """A request's state and the event that wakes its generator."""

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.changed = asyncio.Event()
        self.error: OctavoError | None = None


class AsyncLLM:
    """Made by `start`; used from the event loop it was started in.

    input: encodes and checks; complete once the engine is ready. info: the engine's, after ready.
    dead_cause: why `state` is "dead".
    """

    def __init__(self, args: EngineArgs, loop: asyncio.AbstractEventLoop) -> None:
        self.args = args
        self.state: State = "starting"
        self.dead_cause: str | None = None
        self._loop = loop
        self._handle: EngineHandle | None = None
        self._input: InputProcessor | None = None
        self._info: EngineInfo | None = None
        self._ready: asyncio.Future[EngineInfo] = loop.create_future()
        self._outputs = OutputProcessor()
        self._streams: dict[str, _Stream] = {}  # by key, see RequestState
        self._keys: dict[str, str] = {}  # the caller's request id → key
        self._numbers = count()
        self._stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._stats_number = 0
        self._last_step = 0
        self._heard_s = time.monotonic()
        self._table_sent = False
        self._progress: Progress | None = None
        self._startup: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        args: EngineArgs | str,
        *,
        progress: Progress | None = None,
        in_process: bool = False,
        log_level: str = "info",
        check: bool = False,
    ) -> AsyncLLM:
        """Begin to start an engine and return at once; `wait_ready` tells how it went.

        args: options, or just a model.

        in_process: run it on a thread of this process. check: prove the pool's and the scheduler's
        invariants after every step (in process; for tests).
        """
        settled = EngineArgs(model=args) if isinstance(args, str) else args
        if not isinstance(settled, EngineArgs):
            raise ConfigError("AsyncLLM.start", value=args, limit="a model's name or EngineArgs")
        self = cls(settled, asyncio.get_running_loop())
        self._progress = progress
        self._startup = asyncio.create_task(self._start(in_process, log_level, check))
        return self

    async def _start(self, in_process: bool, log_level: str, check: bool) -> None:
        try:
            path = await asyncio.to_thread(locate, self.args, self._progress)
            if self.state == "dead":
                return
            on_message = self._on_message_in_thread
            self._handle = engine_handle(
                self.args, path, on_message, in_process=in_process, log_level=log_level, check=check
            )
            await self._load_input(path)
        except OctavoError as error:
            self._die(str(error), error)
        except Exception as error:
            log.exception("the start failed")
            self._die(f"{type(error).__name__}: {error}", error)

    async def _load_input(self, path: Path) -> None:
        self._input = await asyncio.to_thread(load_input_processor, self.args, path)
        with contextlib.suppress(EngineStartError):  # told by wait_ready
            info = await asyncio.shield(self._ready)
            self._input.max_model_len = info.max_model_len
            self._input.vocab_size = info.vocab_size
            if self.state == "starting":
                self.state = "ready"

    @property
    def input(self) -> InputProcessor:
        if self._input is None:
            raise self._not_ready()
        return self._input

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise self._not_ready()
        return self._info

    def _not_ready(self) -> EngineError:
        if self.state == "dead":
            return EngineDeadError(f"the engine is dead: {self.dead_cause}")
        return EngineError(f"the engine is {self.state}")

    async def wait_ready(self) -> None:
        """Wait until requests are served. Raises EngineStartError with the root cause."""
        if self._startup is not None:
            await asyncio.shield(self._startup)
        if self._info is None or self._input is None or not self._input.vocab_size:
            if self._ready.done() and (error := self._ready.exception()) is not None:
                raise error
            raise EngineStartError(f"the engine did not start: {self.dead_cause}")

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request's outputs, in `params.output_kind`; the last one has `finished`.

        Raises RequestError for a request that is wrong or refused, EngineError when the engine is
        not there to take it, EngineDeadError when it dies. Closing the generator aborts it.
        """
        if self.state == "starting":
            await self.wait_ready()
        if self.state != "ready":
            raise self._not_ready()
        if isinstance(prompt, str):
            prompt_text = prompt if prompt_text is None else prompt_text
            if len(prompt) > _ENCODE_IN_THREAD:
                ids = await asyncio.to_thread(self.input.encode, prompt)
            else:
                ids = self.input.encode(prompt)
        else:
            ids = self.input.encode(prompt)
        params = self.input.check(ids, params)
        stream = self._admit(ids, params, request_id, prompt_text)
        try:
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                if stream.error is not None:
                    raise stream.error
                output = stream.state.output()
                if output is not None:
                    yield output
                    if output.finished:  # not state.done: it may have ended since `output`
                        return
        finally:
            key = stream.state.key
            del self._streams[key], self._keys[request_id]
            if self._outputs.remove(key) is not None:
                self._send(Abort([key]))

    def _admit(
        self, ids: list[int], params: SamplingParams, request_id: str, prompt_text: str | None
    ) -> _Stream:
        """Send the request off. Everything from here on ends in one terminal output or error."""
        if self.state != "ready":
            raise self._not_ready()
        if request_id in self._keys:
            raise RequestError(
                "request_id is in use", param="request_id", value=request_id, limit="a fresh id"
            )
        door = self.input
        if params.stop_strings and not self._table_sent:
            self._send(token_table(door.tokenizer))
            self._table_sent = True
        now = time.monotonic()
        key = f"{request_id}#{next(self._numbers)}"
        state = RequestState(request_id, prompt_text, ids, params, door.tokenizer, now, key=key)
        stream = _Stream(state)
        self._streams[key] = stream
        self._keys[request_id] = key
        self._outputs.add(state)
        eos_ids = () if params.ignore_eos else door.eos_ids
        self._send(AddRequest(key, prompt_bytes(ids), params, eos_ids, now))
        return stream

    async def abort(self, request_id: str) -> None:
        """End a request; its generator gets the terminal output "abort". Unknown: nothing."""
        key = self._keys.get(request_id)
        if key is not None and key in self._outputs:
            self._send(Abort([key]))

    async def stats(self, *, timeout_s: float = 2.0) -> EngineStats:
        """A fresh snapshot. Raises EngineDeadError, or EngineError when no answer comes in time."""
        if self.state == "dead" or self._handle is None or self._info is None:
            raise self._not_ready()
        self._stats_number += 1
        number = self._stats_number
        future: asyncio.Future[EngineStats] = self._loop.create_future()
        self._stats[number] = future
        self._send(GetStats(number))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            silent = time.monotonic() - self._heard_s
            raise EngineError(
                f"the engine has been silent for {silent:.1f} s; its newest known step is "
                f"{self._last_step}"
            ) from None
        finally:
            self._stats.pop(number, None)

    async def drain(self, timeout_s: float) -> int:
        """Admit nothing more and wait for what runs; after `timeout_s` abort it.

        Returns how many requests were cut; each got its terminal output.
        """
        if self.state == "ready":
            self.state = "draining"
        deadline = time.monotonic() + timeout_s
        while self._streams and self.state != "dead" and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        cut = self._outputs.keys() if self.state != "dead" else []
        if cut:
            self._send(Abort(cut))
            grace = time.monotonic() + 5.0
            while self._streams and self.state != "dead" and time.monotonic() < grace:
                await asyncio.sleep(0.01)
        return len(cut)

    async def close(self) -> None:
        """End the engine; pending requests get EngineDeadError. Safe to call twice."""
        starting = self.state == "starting"
        if self.state != "dead":
            self._die("it was closed", None)
        if starting and self._startup is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._startup
        handle, self._handle = self._handle, None
        if handle is not None:
            await asyncio.to_thread(handle.close)

    def _send(self, message: ToEngine) -> None:
        if self._handle is not None:
            self._handle.send(message)

    def _on_message_in_thread(self, message: FromEngine) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody listens
            self._loop.call_soon_threadsafe(self._on_message, message)

    def _on_message(self, message: FromEngine) -> None:
        self._heard_s = time.monotonic()
        if isinstance(message, Outputs):
            self._last_step = message.step
            for delta in message.deltas:
                self._on_delta(delta)
        elif isinstance(message, Refused):
            self._on_refused(message)
        elif isinstance(message, EngineStats):
            self._last_step = message.step
            if (future := self._stats.pop(message.number, None)) and not future.done():
                future.set_result(message)
        elif isinstance(message, Starting):
            show_phase(self._progress, message)
        elif isinstance(message, Ready):
            self._info = message.info
            if not self._ready.done():
                self._ready.set_result(message.info)
        else:
            self._on_dead(message)

    def _on_delta(self, delta: Delta) -> None:
        try:
            state = self._outputs.push(delta)
        except Exception as error:  # the text of one reply could not be made: only it ends
            log.exception("a reply failed")
            self._fail(delta.request_id, EngineError(f"the reply failed: {error}"))
            self._send(Abort([delta.request_id]))
            return
        if state is None:
            return
        if state.cut:
            self._send(Abort([state.key]))
        stream = self._streams.get(state.key)
        if stream is not None:
            stream.changed.set()

    def _on_refused(self, message: Refused) -> None:
        self._fail(message.request_id, refusal_error(message))

    def _fail(self, key: str, error: OctavoError) -> None:
        """End a request with an error."""
        self._outputs.remove(key)
        stream = self._streams.get(key)
        if stream is not None:
            stream.error = error
            stream.changed.set()

    def _on_dead(self, message: Dead) -> None:
        if self.state != "dead":
            if self._info is not None:  # a failed start is told by wait_ready
                log.error("the engine is dead: %s", message.cause)
            self._die(message.cause, None)

    def _die(self, cause: str, error: BaseException | None) -> None:
        self.state = "dead"
        self.dead_cause = cause
        if not self._ready.done():
            start_error = EngineStartError(f"the engine did not start: {cause}")
            start_error.__cause__ = error
            self._ready.set_exception(start_error)
            self._ready.exception()  # wait_ready may never be called: that is no warning
        for key, stream in self._streams.items():
            self._outputs.remove(key)
            if not stream.state.done:
                stream.error = EngineDeadError(f"the engine died: {cause}")
                stream.changed.set()
        for future in self._stats.values():
            if not future.done():
                future.set_exception(EngineDeadError(f"the engine died: {cause}"))
