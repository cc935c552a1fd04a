"""Progress of downloads and loading, drawn by rich on a terminal and nowhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from octavo.weights.progress import Progress, Silent

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class _Bars:
    """A bar for a task of known size, a spinner else. rich is imported when one is needed."""

    def __init__(self) -> None:
        self._drawn: RichProgress | None = None

    def start(self, description: str, total_bytes: int | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            SpinnerColumn,
            TextColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        self.done()
        text = TextColumn("{task.description}")
        columns = (
            (SpinnerColumn(), text)
            if total_bytes is None
            else (text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
        )
        self._drawn = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._drawn.start()
        self._drawn.add_task(description, total=total_bytes)

    def advance(self, nbytes: int) -> None:
        if self._drawn is not None:
            self._drawn.advance(self._drawn.task_ids[0], nbytes)

    def done(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def bars() -> Progress:
    """Bars on a terminal, silence elsewhere."""
    return _Bars() if sys.stderr.isatty() else Silent()
