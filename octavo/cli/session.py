"""One engine in this process, one reply at a time: what the terminal commands use."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.base.environment import read_environment
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.client import AsyncLLM
from octavo.config import EngineArgs, with_environment
from octavo.weights import Progress


@dataclass
class Last:
    """The newest reply."""

    prompt_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Session:
    """Streams replies synchronously; an interrupted or closed stream aborts its request."""

    def __init__(self, runner: asyncio.Runner, llm: AsyncLLM) -> None:
        self._runner = runner
        self._llm = llm
        self.last = Last()

    @property
    def default_params(self) -> dict[str, Any]:
        return dict(self._llm.input.default_params)

    def stream_chat(self, messages: list[dict[str, Any]], params: SamplingParams) -> Iterator[str]:
        """The reply to a conversation, piece by piece."""
        _, ids = self._llm.input.encode_chat(messages)
        return self.stream(ids, params)

    def stream(self, prompt: str | list[int], params: SamplingParams) -> Iterator[str]:
        """The continuation of a prompt, piece by piece."""
        delta = params.replace(output_kind=RequestOutputKind.DELTA)
        outputs = self._llm.generate(prompt, delta, uuid.uuid4().hex)
        self.last = Last()
        try:
            while True:
                try:
                    output = self._runner.run(anext(outputs))
                except StopAsyncIteration:
                    return
                piece, last = output.outputs[0], self.last
                last.prompt_tokens = len(output.prompt_token_ids)
                last.text += piece.text
                last.token_ids += piece.token_ids
                last.finish_reason, last.stop_reason = piece.finish_reason, piece.stop_reason
                if piece.text:
                    yield piece.text
        finally:
            self._runner.run(outputs.aclose())


@contextlib.contextmanager
def open_session(args: EngineArgs, progress: Progress) -> Iterator[Session]:
    """Start an engine on a thread of this process and wait until it is ready."""
    settled = with_environment(args, read_environment())
    with asyncio.Runner() as runner:

        async def begin() -> AsyncLLM:
            llm = await AsyncLLM.start(settled, progress=progress, in_process=True)
            await llm.wait_ready()
            return llm

        llm = runner.run(begin())
        try:
            yield Session(runner, llm)
        finally:
            runner.run(llm.close())
