"""`octavo serve`: listen first, start the engine, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Generator
from typing import Any

import uvicorn

from octavo.base.environment import read_environment
from octavo.base.errors import ConfigError, EngineStartError
from octavo.client import AsyncLLM
from octavo.config import EngineArgs, ServerArgs, check_server, with_environment
from octavo.obs import fields
from octavo.server.app import build_app
from octavo.server.protocol import BoundedHttp
from octavo.server.state import ServerState, key_digests
from octavo.weights import Progress

log = logging.getLogger(__name__)


def serve(args: EngineArgs, options: ServerArgs, progress: Progress | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code; raises OctavoError before it listens.

    The socket listens before the model is loaded, so /live answers at once and /ready says when.
    """
    environment = read_environment()
    check_server(options, args.served_model_name)
    keys = key_digests(options, environment.api_key)
    listening = _listen(options)
    with asyncio.Runner() as runner:
        return runner.run(
            _serve(with_environment(args, environment), options, keys, listening, progress)
        )


def _listen(options: ServerArgs) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listening = socket.create_server((options.host, options.port), family=family, backlog=2048)
        # asyncio sets this on sockets of its own making only; connections inherit it. Without it a
        # token may wait for the client's acknowledgement of the one before.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {error}",
            remedy="is it taken? --port 0 takes a free one",
        ) from None


class _Server(uvicorn.Server):
    """Signals are ours: they drain before they end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _serve(
    args: EngineArgs,
    options: ServerArgs,
    keys: tuple[bytes, ...],
    listening: socket.socket,
    progress: Progress | None,
) -> int:
    started = time.monotonic()
    llm = await AsyncLLM.start(args, progress=progress, log_level=options.log_level)
    names = args.served_model_name or (args.model,)
    state = ServerState(llm, options, names, keys)
    server = _Server(
        uvicorn.Config(
            build_app(state),
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    ending = _Ending(llm, server, options.drain_timeout_s)
    ending.install()
    host, port = listening.getsockname()[:2]
    try:
        await _announce(llm, names[0], f"http://{host}:{port}", started, serving, ending)
        await serving
    finally:
        server.should_exit = True
        await llm.close()
        await asyncio.gather(serving, return_exceptions=True)
    return ending.code


async def _announce(
    llm: AsyncLLM,
    name: str,
    url: str,
    started: float,
    serving: asyncio.Future[None],
    ending: _Ending,
) -> None:
    log.info("listening on %s", url)
    ready = asyncio.ensure_future(llm.wait_ready())
    stop = asyncio.ensure_future(ending.asked.wait())
    waited: set[asyncio.Future[Any]] = {ready, serving, stop}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not ready.done():
        ready.cancel()
        return
    if (error := ready.exception()) is not None:
        if ending.asked.is_set():
            return
        raise error if isinstance(error, EngineStartError) else EngineStartError(str(error))
    info = llm.info
    log.info(
        "ready in %.2f s: %s at %s %s",
        time.monotonic() - started,
        name,
        url,
        fields(
            backend=info.backend,
            isa=info.isa,
            threads=info.threads,
            context=info.max_model_len,
            kv_blocks=info.num_blocks,
        ),
    )


class _Ending:
    """SIGTERM and SIGINT: drain, then end with 0. A second SIGINT ends at once with 130."""

    def __init__(self, llm: AsyncLLM, server: uvicorn.Server, drain_timeout_s: float) -> None:
        self.code = 0
        self.asked = asyncio.Event()
        self._llm = llm
        self._server = server
        self._drain_timeout_s = drain_timeout_s
        self._draining: asyncio.Task[None] | None = None

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)

    def _signal(self, number: int) -> None:
        if self._draining is None:
            self.asked.set()
            self._draining = asyncio.ensure_future(self._drain(signal.Signals(number).name))
        elif number == signal.SIGINT:
            self.code = 130
            self._server.force_exit = True
            self._server.should_exit = True

    async def _drain(self, name: str) -> None:
        log.info("%s: no new requests; running ones get %g s", name, self._drain_timeout_s)
        cut = await self._llm.drain(self._drain_timeout_s)
        log.info("drained %s", fields(cut=cut))
        # Replies have got their last event; give the sockets a moment to send it.
        self._server.config.timeout_graceful_shutdown = 2
        self._server.should_exit = True
