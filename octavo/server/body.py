"""Reading a request's body within bounds of size, time and nesting."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from starlette.requests import Request

from octavo.base.errors import RequestError, RequestTooLargeError

_DISCARD_S = 2.0


class RequestTimeoutError(RequestError):
    """The client took too long to send its request."""

    status = 408
    code = "request_timeout"


class ClientGoneError(Exception):
    """The client closed its connection."""


async def read_json(request: Request, most_bytes: int, timeout_s: float) -> Any:
    """The body as JSON. Raises RequestError subclasses: 400, 408, 413."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("content-type", value=kind, limit="application/json")
    raw = await _read(request, most_bytes, timeout_s)
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


async def _read(request: Request, most_bytes: int, timeout_s: float) -> bytes:
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > most_bytes:
        await _discard(request)
        raise _too_large(int(stated), most_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > most_bytes:
                    chunks.clear()
                    await _discard(request)
                    raise _too_large(size, most_bytes)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise RequestTimeoutError(
            "the body did not arrive in time",
            value=f"{size} bytes",
            limit=f"all in {timeout_s:g} s",
        ) from None


async def _discard(request: Request) -> None:
    """Read on for a moment: a client reads the answer only once it has sent its body."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while (message := await request.receive()).get("more_body", False):
                if message["type"] == "http.disconnect":
                    return


def _too_large(size: int, most_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        "the body is too large", value=f"{size} bytes", limit=f"at most {most_bytes} bytes"
    )
