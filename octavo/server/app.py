"""The HTTP application: routes, and what is around them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from octavo import __version__
from octavo.base.errors import EngineError, ModelNotServedError, OctavoError
from octavo.server.body import read_json
from octavo.server.errors import error_response, json_response, response_of
from octavo.server.generate import chat_completions, completions
from octavo.server.metrics import render
from octavo.server.middleware import Door
from octavo.server.requests import parse_detokenize, parse_tokenize
from octavo.server.state import ServerState

_STARTED = int(time.time())
_SILENT_S = 2.0  # an engine that does not answer for this long is stalled
_STUCK_S = 30.0  # a step that runs for this long is stuck


def build_app(state: ServerState) -> ASGIApp:
    """The application for one engine. `state.llm` may still be starting."""
    app = Starlette(
        routes=[
            Route("/live", live),
            Route("/health", health),
            Route("/ready", health),
            Route("/version", version),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, OctavoError: _octavo_error},
    )
    app.state.octavo = state
    around: ASGIApp = Door(app, state)
    if state.options.allowed_origins:
        around = CORSMiddleware(
            around,
            allow_origins=state.options.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-octavo-inert"],
        )
    return around


def _state(request: Request) -> ServerState:
    found: ServerState = request.app.state.octavo
    return found


async def _octavo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OctavoError)
    return response_of(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {
        404: f"no route {request.method} {request.url.path[:128]}",
        405: f"{request.url.path[:128]} does not take {request.method}",
    }.get(error.status_code, error.detail)
    return error_response(what, error.status_code, code="not_found", headers=error.headers)


async def live(request: Request) -> Response:
    """200 from the moment the server listens."""
    return json_response({"status": "live"})


async def health(request: Request) -> Response:
    """200 while requests are taken; 503 with the state, the cause of a death, or what is stuck.

    The engine is asked each time: its loop answers even during a long step, so silence is a stall.
    """
    llm = _state(request).llm
    body: dict[str, Any] = {"status": llm.state}
    if llm.state == "ready":
        try:
            stats = await llm.stats(timeout_s=_SILENT_S)
        except EngineError as error:
            body = {"status": "stalled" if llm.state == "ready" else llm.state, "cause": str(error)}
        else:
            if (stats.step_age_s or 0.0) < _STUCK_S:
                return json_response(body)
            cause = f"step {stats.step} has run for {stats.step_age_s:.0f} s"
            body = {"status": "stalled", "cause": cause}
    if llm.dead_cause is not None:
        body["cause"] = llm.dead_cause
    return json_response(body, 503, headers={"retry-after": "1"})


async def version(request: Request) -> Response:
    return json_response({"version": __version__})


async def metrics(request: Request) -> Response:
    state = _state(request)
    llm = state.llm
    info = stats = None
    if llm.state in ("ready", "draining"):
        info = llm.info
        try:
            stats = await llm.stats()
        except EngineError:  # a frozen engine must not take its metrics page along
            stats = None
    page = render(llm.state == "ready", state.requests, info, stats)
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


def _model_body(state: ServerState, name: str) -> dict[str, Any]:
    body = {"id": name, "object": "model", "created": _STARTED, "owned_by": "octavo"}
    if state.llm.state in ("ready", "draining"):
        body["max_model_len"] = state.llm.info.max_model_len
    return body


async def models(request: Request) -> Response:
    state = _state(request)
    data = [_model_body(state, name) for name in state.served_names]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    state = _state(request)
    name = request.path_params["model"]
    if name not in state.served_names:
        raise ModelNotServedError(
            "no such model here", param="model", value=name, limit=repr(state.served_names[0])
        )
    return json_response(_model_body(state, name))


async def _read(request: Request) -> Any:
    state = _state(request)
    state.check_open()
    options = state.options
    return await read_json(request, options.max_body_bytes, options.request_read_timeout_s)


async def tokenize(request: Request) -> Response:
    state, body = _state(request), await _read(request)
    door = state.llm.input
    prompt, strings = await asyncio.to_thread(parse_tokenize, body, state.served_names, door)
    reply: dict[str, Any] = {
        "count": len(prompt.ids),
        "max_model_len": state.llm.info.max_model_len,
        "tokens": prompt.ids,
        "token_strs": None,
    }
    if strings:
        reply["token_strs"] = [door.tokenizer.piece(token) for token in prompt.ids]
    return json_response(reply)


async def detokenize(request: Request) -> Response:
    state, body = _state(request), await _read(request)
    door = state.llm.input
    tokens = await asyncio.to_thread(parse_detokenize, body, state.served_names, door)
    text = door.tokenizer.decode(tokens, skip_special_tokens=False)
    return json_response({"prompt": text})
