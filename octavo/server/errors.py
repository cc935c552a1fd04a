"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from octavo.base.errors import EngineError, OctavoError, QueueFullError, RequestError

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


def error_body(
    message: str, status: int, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The JSON object of an error."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    message: str,
    status: int,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return json_response(
        error_body(message, status, param=param, code=code), status, headers=headers
    )


def status_of(error: OctavoError) -> int:
    """The HTTP status of an error that ended a request."""
    if isinstance(error, RequestError):
        return error.status
    return 503 if isinstance(error, EngineError) else 500


def body_of(error: OctavoError) -> dict[str, Any]:
    if isinstance(error, RequestError):
        return error_body(str(error), error.status, param=error.param, code=error.code)
    return error_body(str(error), status_of(error), code="engine_error")


def response_of(error: OctavoError) -> Response:
    headers = {"retry-after": "1"} if isinstance(error, (QueueFullError, EngineError)) else None
    return json_response(body_of(error), status_of(error), headers=headers)


def json_response(
    body: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(body), status, dict(headers or {}), media_type="application/json"
    )
