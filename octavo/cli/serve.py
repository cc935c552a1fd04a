"""octavo serve"""

from __future__ import annotations

from octavo.cli.bars import bars
from octavo.cli.parser import Arguments, options_of
from octavo.config import EngineArgs, ServerArgs
from octavo.obs import set_up_logging


def run(options: Arguments) -> int:
    server: ServerArgs = options_of(ServerArgs, options)
    set_up_logging(server.log_level)
    from octavo.server.serve import serve

    return serve(options_of(EngineArgs, options), server, bars())
