"""The engine's end of its channel: messages in, messages out.

In process it is a queue and a callback. Between processes it is a pair of ZeroMQ sockets in a
folder that only this user may enter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

import zmq

from octavo.base.errors import OctavoError, RequestError
from octavo.engine.messages import Codec, FromEngine, ToEngine, added_id, refusal

log = logging.getLogger(__name__)


class EngineEnd(Protocol):
    """Used by the core loop's thread only."""

    def receive(self, wait: bool) -> list[ToEngine]:
        """All messages that lie there; with `wait` at least one, however long it takes."""
        ...

    def send(self, message: FromEngine) -> None:
        """Hand over a message; never waits for the client."""
        ...

    def close(self) -> None: ...


class QueueEnd:
    """For an engine in the client's own process. `on_message` runs in the loop's thread."""

    def __init__(self, inbox: SimpleQueue[ToEngine], on_message: Callable[[FromEngine], None]):
        self._inbox = inbox
        self._on_message = on_message

    def receive(self, wait: bool) -> list[ToEngine]:
        messages = [self._inbox.get()] if wait else []
        try:
            while True:
                messages.append(self._inbox.get_nowait())
        except Empty:
            return messages

    def send(self, message: FromEngine) -> None:
        self._on_message(message)

    def close(self) -> None:
        pass


class SocketEnd:
    """For an engine in its own process. Each side binds the socket that it receives on."""

    def __init__(self, inbox_address: str, outbox_address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._inbox = unbounded(self._context.socket(zmq.PULL))
        self._outbox = unbounded(self._context.socket(zmq.PUSH))
        self._outbox.setsockopt(zmq.LINGER, 1000)  # the last message tells why the engine ends
        self._inbox.bind(inbox_address)
        self._outbox.connect(outbox_address)
        self._codec = Codec(ToEngine)

    def receive(self, wait: bool) -> list[ToEngine]:
        messages: list[ToEngine] = []
        if wait:
            self._decode(self._inbox.recv(), messages)
        while int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._decode(self._inbox.recv(), messages)
        return messages

    def _decode(self, data: bytes, messages: list[ToEngine]) -> None:
        """A message that can't be read harms nobody: a request in it is refused."""
        try:
            messages.append(self._codec.decode(data))
        except OctavoError as error:
            log.error("dropped a message: %s", error)
            request_id = added_id(data)
            if request_id is not None:
                self.send(refusal(request_id, RequestError(str(error))))

    def send(self, message: FromEngine) -> None:
        self._outbox.send(self._codec.encode(message))

    def close(self) -> None:
        self._inbox.close(linger=0)
        self._outbox.close()
        self._context.term()


def unbounded(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Without a high-water mark: what is on its way is bounded by the accepted requests."""
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
