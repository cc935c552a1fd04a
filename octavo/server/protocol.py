"""uvicorn's HTTP/1.1 protocol with a bound on a request's head, in bytes and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.errors import error_body

MOST_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
}


class BoundedHttp(HttpToolsProtocol):
    """431 for a head of more than 64 KiB, 408 for one that does not arrive in time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._head_open = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._head_open:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(431, f"the request's head is over {MOST_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._head_open, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # Between requests of a kept connection uvicorn's own idle time-out counts.
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        if self._head_open:
            self._refuse(408, f"the request's head did not arrive in {HEAD_TIMEOUT_S:g} s")

    def _refuse(self, status: int, text: str) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        reason = _REASONS[status]
        body = msgspec.json.encode(error_body(text, status))
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()
