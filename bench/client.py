"""A client of any OpenAI completions endpoint that streams.

It shares the machine with the server that is measured, so it does little while a reply comes: it
notes when each piece arrived and reads the pieces after the last one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from figures import Chunk, Reply, Request

Event = tuple[float, dict[str, Any]]


class RequestFailed(Exception):
    """A request that was not answered in full; the message says how."""


class Completions:
    """`/v1/completions` of one server.

    extra: fields that this server takes beside OpenAI's: to ignore EOS, to be told token counts.
    """

    def __init__(self, base_url: str, model: str, extra: Mapping[str, Any]) -> None:
        self._model = model
        self._extra = extra
        self._http = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            timeout=httpx.Timeout(600.0, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    async def __aenter__(self) -> Completions:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(self, request: Request) -> Reply:
        """Exactly `request.tokens` tokens, greedy. Raises RequestFailed for anything else."""
        body = {
            "model": self._model,
            "prompt": list(request.prompt),
            "max_tokens": request.tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        data = json.dumps(body).encode()
        pieces: list[tuple[float, bytes]] = []
        begun_s = time.perf_counter()
        try:
            async with self._http.stream(
                "POST",
                "/v1/completions",
                content=data,
                headers={"content-type": "application/json", "accept-encoding": "identity"},
            ) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise RequestFailed(f"status {response.status_code}: {text[:500]}")
                async for piece in response.aiter_raw():
                    pieces.append((time.perf_counter(), piece))  # noqa: PERF401
        except httpx.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from None
        return reply_of(request, begun_s, events(pieces))


def events(pieces: Sequence[tuple[float, bytes]]) -> list[Event]:
    """Server-sent events with the time at which each one's last byte came. [DONE] is left out."""
    found: list[Event] = []
    rest = b""
    for at_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                found.append((at_s, json.loads(data)))
    return found


def reply_of(request: Request, begun_s: float, found: Sequence[Event]) -> Reply:
    """A reply from its stream's events.

    Token counts of a chunk, by what servers offer: the ids themselves (`return_token_ids`: octavo,
    vLLM), or running totals (`timings_per_token`: llama.cpp). The reply's total is in its usage.
    Raises RequestFailed for an error event or another number of tokens than was asked for.
    """
    chunks: list[Chunk] = []
    usage: dict[str, Any] = {}
    made = 0
    for at_s, event in found:
        if "error" in event:
            raise RequestFailed(f"error in the stream: {str(event['error'])[:500]}")
        usage = event.get("usage") or usage
        choices = event.get("choices") or []
        if not choices:
            continue
        count: int | None = None
        ids, total = choices[0].get("token_ids"), (event.get("timings") or {}).get("predicted_n")
        if ids is not None:
            count = len(ids)
        elif total is not None:
            count, made = total - made, total
        elif choices[0].get("finish_reason") and not choices[0].get("text"):
            count = 0  # the end, by itself
        if count != 0:
            chunks.append(Chunk(at_s, count))
    if not chunks:
        raise RequestFailed("the stream brought no tokens")
    tokens = usage.get("completion_tokens")
    if tokens is None:
        raise RequestFailed("the stream ended without a usage")
    if tokens != request.tokens:
        raise RequestFailed(f"{tokens} tokens instead of {request.tokens}")
    return Reply(begun_s, tuple(chunks), tokens, int(usage.get("prompt_tokens", 0)))
