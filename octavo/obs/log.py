"""Logging: one short line per event, `key=value` after the sentence, no prompt text.

12:03:04.512 I engine: ready in 412 ms model=smollm2-135m blocks=512
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

from octavo.base.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
_ROOT = "octavo"


class _Line(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock}.{int(record.msecs):03d} {record.levelname[0]} {self._process}: "
        text += record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def set_up_logging(
    level: str = "info", *, process: str = "api", stream: TextIO | None = None
) -> None:
    """Send octavo's log records to `stream` (stderr). Again: replaces the earlier set-up.

    process: "api", "engine", …, written in each line. Raises ConfigError for an unknown level.
    """
    if level not in LEVELS:
        raise ConfigError("--log-level", value=level, limit=f"one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Line(process))
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def fields(**values: object) -> str:
    """`key=value …` for the end of a log line; floats short, None left out."""
    parts = []
    for key, value in values.items():
        if value is not None:
            parts.append(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}")
    return " ".join(parts)
