"""octavo program"""

from __future__ import annotations

from octavo.cli.bars import bars
from octavo.cli.parser import Arguments
from octavo.config import EngineArgs
from octavo.engine.model import open_model
from octavo.program import StepShape, describe
from octavo.weights import resolve_model


def run(options: Arguments) -> int:
    """Print the op table of a decode step (1 token) or of a prefill (more)."""
    path = resolve_model(options.model, progress=bars())
    model = open_model(path, block_size=EngineArgs.block_size)
    tokens = options.tokens
    shape = StepShape.prefill(tokens) if tokens > 1 else StepShape.decode(1, options.context)
    print(describe(model.program, model.formats, shape))
    return 0
