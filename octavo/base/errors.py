"""What octavo raises for anything a user, a file or a device can cause.

OctavoError
├── ConfigError           an option, flag or environment variable
├── ModelError            a model cannot be found, read or run
│   ├── ModelNotFoundError
│   ├── ModelFileError    a file that lies: file, field, found, expected
│   └── UnsupportedModelError
├── RequestError          one request is wrong; the engine is fine (HTTP 400)
│   ├── ContextLengthError
│   ├── CapacityError     it could never fit this configuration
│   ├── TemplateError
│   ├── RequestTooLargeError   (413)
│   ├── ModelNotServedError    (404)
│   └── QueueFullError         (429)
└── EngineError           the engine, not the request
    ├── EngineStartError
    └── EngineDeadError   (503)
"""

from __future__ import annotations


class OctavoError(Exception):
    """What happened, and where known the value, the limit and what to do.

    >>> str(OctavoError("block size", value=3, limit="a power of two", remedy="try 16"))
    'block size: got 3, expected a power of two; try 16'
    """

    def __init__(
        self,
        what: str,
        *,
        value: object = None,
        limit: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        self.remedy = remedy
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        text = self.what
        found = None if self.value is None else f"got {_short(self.value)}"
        expected = None if self.limit is None else f"expected {self.limit}"
        details = ", ".join(part for part in (found, expected) if part)
        if details:
            text += f": {details}"
        if self.remedy:
            text += f"; {self.remedy}"
        return text


def _short(value: object, most: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class ConfigError(OctavoError):
    """An option, flag or environment variable is wrong."""


class ModelError(OctavoError):
    """A model cannot be found, read or run."""


class ModelNotFoundError(ModelError):
    """No such model name, file or folder."""


class ModelFileError(ModelError):
    """A model file is truncated, oversized or lies about itself."""

    def __init__(self, file: object, field: str, *, found: object, expected: str) -> None:
        self.file = str(file)
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(f"{self.file}: {field}", value=found, limit=expected)


class UnsupportedModelError(ModelError):
    """The model needs something octavo does not implement."""


class RequestError(OctavoError):
    """One request is wrong. `param` names the field, `code` and `status` go to the client."""

    status = 400
    code = "invalid_value"

    def __init__(
        self,
        what: str,
        *,
        param: str | None = None,
        code: str | None = None,
        value: object = None,
        limit: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.param = param
        if code is not None:
            self.code = code
        super().__init__(what, value=value, limit=limit, remedy=remedy)


class ContextLengthError(RequestError):
    """Prompt and reply do not fit the context."""

    code = "context_length_exceeded"


class CapacityError(RequestError):
    """The request could never fit the KV pool of this configuration."""

    code = "kv_capacity_exceeded"


class TemplateError(RequestError):
    """A chat template refused, failed, or ran past its limits."""

    code = "chat_template_error"


class RequestTooLargeError(RequestError):
    """The body is larger than the server takes."""

    status = 413
    code = "request_too_large"


class ModelNotServedError(RequestError):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"


class QueueFullError(RequestError):
    """Too many requests wait already."""

    status = 429
    code = "queue_full"


class EngineError(OctavoError):
    """The engine failed, whatever the request was."""


class EngineStartError(EngineError):
    """The engine could not start; the message carries the root cause."""


class EngineDeadError(EngineError):
    """The engine is gone; the message carries the cause."""
