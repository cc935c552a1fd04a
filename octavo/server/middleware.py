"""Around every request: its id, the API key, one log line, and errors in OpenAI's shape."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.base.errors import OctavoError
from octavo.obs import fields
from octavo.server.body import ClientGoneError
from octavo.server.errors import error_response, response_of
from octavo.server.requests import valid_id
from octavo.server.state import ServerState

log = logging.getLogger(__name__)

OPEN_ROUTES = frozenset({"/live", "/health", "/version"})
_QUIET_ROUTES = OPEN_ROUTES | {"/ready", "/metrics"}


class Door:
    """Pure ASGI, so that streams pass through untouched."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id")
        request_id = given if valid_id(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = str(request_id)
            await send(message)

        try:
            await self._answer(scope, headers, receive, send_with_id)
        except ClientGoneError:
            status = 499
        except OctavoError as error:
            await response_of(error)(scope, receive, send_with_id)
        except Exception as error:
            log.exception("a request failed %s", fields(id=request_id))
            if status:
                raise
            text = f"internal error: {type(error).__name__}"
            await error_response(text, 500)(scope, receive, send_with_id)
        finally:
            self._log(scope, str(request_id), status, time.monotonic() - started)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self._state.keys and scope["path"] not in OPEN_ROUTES and not preflight:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._state.key_is_valid(key.strip()):
                response = error_response(
                    "a valid API key is needed: Authorization: Bearer …",
                    401,
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _log(self, scope: Scope, request_id: str, status: int, took_s: float) -> None:
        path = scope["path"]
        # Metrics count routes, not paths: a path can be anything, a label must not.
        route = "other"
        if scope.get("endpoint") is not None:
            route = "/v1/models/{model}" if scope.get("path_params") else path
        counts = self._state.requests
        counts[route, status] = counts.get((route, status), 0) + 1
        level = logging.DEBUG if path in _QUIET_ROUTES else logging.INFO
        if not log.isEnabledFor(level):
            return
        reply = scope["state"].get("reply")
        usage = reply.usage if reply is not None else None
        log.log(
            level,
            "%s %s %d %s",
            scope["method"],
            path[:128].encode("unicode_escape").decode(),
            status,
            fields(
                id=request_id,
                prompt_tokens=usage.prompt if usage else None,
                completion_tokens=usage.completion if usage else None,
                ms=took_s * 1e3,
            ),
        )
