"""What both clients do to get an engine: find the model, start it, describe the tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo.config import EngineArgs
from octavo.engine.handle import EngineHandle, ProcessEngine
from octavo.engine.messages import FromEngine, Starting, TokenTable
from octavo.text import Tokenizer
from octavo.weights import Progress, resolve_model


def locate(args: EngineArgs, progress: Progress | None = None) -> Path:
    """The model's path, fetched if need be. Raises ModelError subclasses."""
    reference = args.model
    if args.revision is not None and "@" not in reference:
        reference = f"{reference}@{args.revision}"
    return resolve_model(reference, progress=progress)


def engine_handle(
    args: EngineArgs,
    model_path: Path,
    on_message: Callable[[FromEngine], None],
    *,
    in_process: bool,
    log_level: str = "info",
    check: bool = False,
) -> EngineHandle:
    """Start an engine on a thread (`in_process`) or in a process of its own."""
    if in_process:
        # Only now: a client of an engine process needs neither backends nor the scheduler.
        from octavo.engine.thread import ThreadEngine

        return ThreadEngine(args, model_path, on_message, check=check)
    return ProcessEngine(args, model_path, on_message, log_level=log_level)


def token_table(tokenizer: Tokenizer) -> TokenTable:
    """The bytes of all tokens, which the engine matches stop strings on."""
    blob, offsets = tokenizer.token_bytes.packed()
    return TokenTable(blob, offsets, sorted(tokenizer.special))


def show_phase(progress: Progress | None, message: Starting) -> None:
    """Tell a progress display that a phase of the engine's start begins or has ended."""
    if progress is None:
        return
    if message.took_ms is None:
        progress.start(message.phase, None)
    else:
        progress.done()
