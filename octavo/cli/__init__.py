"""The command line: octavo serve, generate, chat, pull, models, env, program, bench.

Exit codes: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; prints errors as one line, with a traceback only under --debug."""
    from octavo.base.errors import ConfigError, OctavoError
    from octavo.cli.parser import build_parser

    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except OctavoError as error:
        if options.debug:
            raise
        print(f"octavo: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left: nothing more to say
        return 1
