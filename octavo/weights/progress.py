"""How a download tells what it does, to whoever draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One task at a time: `start`, any number of `advance`, `done` (also after a failure)."""

    def start(self, description: str, total_bytes: int | None) -> None: ...

    def advance(self, nbytes: int) -> None: ...

    def done(self) -> None: ...


class Silent:
    """Draws nothing."""

    def start(self, description: str, total_bytes: int | None) -> None: ...

    def advance(self, nbytes: int) -> None: ...

    def done(self) -> None: ...
