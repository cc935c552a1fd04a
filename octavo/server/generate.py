"""/v1/completions and /v1/chat/completions, streamed and not.

A request that is left by its client is aborted at once: while a reply is made, a second task waits
for the connection's end and cancels the first, and closing the client's generator aborts the
request in the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.base.errors import EngineError, OctavoError
from octavo.base.outputs import CompletionOutput, RequestOutput
from octavo.client import AsyncLLM
from octavo.obs import fields
from octavo.server.body import ClientGoneError, read_json
from octavo.server.errors import body_of, error_body, json_response, response_of
from octavo.server.replies import Shape, Usage
from octavo.server.requests import Generation, parse_chat, parse_completion
from octavo.server.state import ServerState

log = logging.getLogger(__name__)
T = TypeVar("T")

_PARSE_IN_THREAD = 16_384  # bytes; smaller bodies are parsed faster than a thread is asked
_DONE = b"data: [DONE]\n\n"


async def completions(request: Request) -> Response:
    return await _generate(request, parse_completion, "cmpl")


async def chat_completions(request: Request) -> Response:
    return await _generate(request, parse_chat, "chatcmpl")


async def _generate(request: Request, parse: Callable[..., Generation], prefix: str) -> Response:
    state: ServerState = request.app.state.octavo
    state.check_open()
    options = state.options
    body = await read_json(request, options.max_body_bytes, options.request_read_timeout_s)
    arguments = (body, state.served_names, state.llm.input)
    if int(request.headers.get("content-length", _PARSE_IN_THREAD)) < _PARSE_IN_THREAD:
        generation = parse(*arguments)
    else:
        generation = await asyncio.to_thread(parse, *arguments)
    given = generation.request_id or request.state.request_id
    shape = Shape(generation, f"{prefix}-{given}", state.llm.input.tokenizer)
    reply = Reply(state.llm, generation, shape)
    request.state.reply = reply
    if options.log_prompts:
        for prompt in generation.prompts:
            log.info("prompt %s", fields(id=given, text=repr(prompt.text or prompt.ids)))
    headers = {}
    if generation.inert:
        headers["x-octavo-inert"] = ",".join(generation.inert)
    if generation.stream:
        return EventStream(reply, headers)
    try:
        whole = await until_gone(request.receive, reply.whole())
    except ClientGoneError:
        reply.log_gone()
        return Response(status_code=499)
    return json_response(whole, headers=headers)


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Await `work`; if the client goes first, cancel it and raise ClientGoneError."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_client_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for item in (task, gone):
            item.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await item


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Reply:
    """One HTTP request's generation: an engine request per prompt, in the order of the choices."""

    def __init__(self, llm: AsyncLLM, generation: Generation, shape: Shape) -> None:
        self._llm = llm
        self.generation = generation
        self.shape = shape
        self.usage = Usage(
            prompt=sum(len(prompt.ids) for prompt in generation.prompts),
            cut=sum(prompt.cut for prompt in generation.prompts),
        )
        self.first_token_s: float | None = None
        self.started_s = time.monotonic()

    def _outputs(self, index: int) -> AsyncGenerator[RequestOutput, None]:
        prompt = self.generation.prompts[index]
        unique = f"{self.shape.reply_id}-{index}-{uuid.uuid4().hex[:12]}"
        return self._llm.generate(
            prompt.ids, self.generation.params, unique, prompt_text=prompt.text
        )

    async def whole(self) -> dict[str, Any]:
        """The reply that is not streamed. One prompt's failure ends the others."""
        count = len(self.generation.prompts)
        tasks = [asyncio.ensure_future(self._one(i)) for i in range(count)]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.shape.whole(outputs, self.usage)

    async def _one(self, index: int) -> CompletionOutput:
        async with contextlib.aclosing(self._outputs(index)) as outputs:
            async for output in outputs:
                self._count(output)
                if output.finished:
                    _raise_fault(output.outputs[0])
                    return output.outputs[0]
        raise EngineError("the engine ended a request without its last output")

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The reply's stream objects: role, text, finish, usage."""
        if self.generation.chat:
            yield self.shape.role_chunk()
        async with contextlib.aclosing(self._merged()) as merged:
            async for index, output in merged:
                self._count(output)
                item = output.outputs[0]
                _raise_fault(item)
                if item.text:
                    yield self.shape.text_chunk(index, item)
                if output.finished:
                    yield self.shape.finish_chunk(index, item)
        if self.generation.include_usage:
            yield self.shape.usage_chunk(self.usage)

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Outputs of all prompts as they come."""
        count = len(self.generation.prompts)
        if count == 1:
            async with contextlib.aclosing(self._outputs(0)) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(
            maxsize=2 * count
        )

        async def pump(index: int) -> None:
            try:
                async with contextlib.aclosing(self._outputs(index)) as outputs:
                    async for output in outputs:
                        await queue.put((index, output))
                await queue.put((index, None))
            except Exception as error:
                await queue.put((index, error))

        tasks = [asyncio.ensure_future(pump(index)) for index in range(count)]
        try:
            while count:
                index, item = await queue.get()
                if item is None:
                    count -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield index, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _count(self, output: RequestOutput) -> None:
        self.usage.completion += len(output.outputs[0].token_ids)
        if output.finished:
            self.usage.cached += output.num_cached_tokens
        if self.first_token_s is None and output.outputs[0].token_ids:
            self.first_token_s = time.monotonic()

    def log_gone(self) -> None:
        log.info(
            "client gone %s",
            fields(id=self.shape.reply_id, wasted_tokens=self.usage.completion),
        )


def _raise_fault(output: CompletionOutput) -> None:
    if output.finish_reason == "error":
        raise EngineError(f"the request failed: {output.stop_reason or 'no cause is known'}")


class EventStream(Response):
    """Server-sent events. Ends in exactly one of: [DONE] after a finish, or an error event.

    Errors before the first byte become an HTTP status: the stream starts with the first chunk that
    comes from the engine.
    """

    def __init__(self, reply: Reply, headers: dict[str, str]) -> None:
        super().__init__(None, 200, headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-store"
        self.headers["x-accel-buffering"] = "no"
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send_all(scope, receive, send))
        except (ClientGoneError, OSError):
            self._reply.log_gone()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        pending = b""  # the role chunk waits for the first text, so that a refusal has a status

        async def write(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def start() -> None:
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)

        try:
            async with contextlib.aclosing(self._reply.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    data = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
                    if not started and not pending and self._reply.generation.chat:
                        pending = data
                        continue
                    if not started:
                        await start()
                        started = True
                    await write(pending + data)
                    pending = b""
        except OctavoError as error:
            if not started:
                await response_of(error)(scope, receive, send)
                return
            await write(_event(body_of(error)))
        except Exception as error:
            log.exception("a stream failed")
            body = error_body(f"the stream failed: {type(error).__name__}", 500)
            if not started:
                await json_response(body, 500)(scope, receive, send)
                return
            await write(_event(body))
        await write(_DONE, more=False)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
