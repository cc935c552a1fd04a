"""octavo pull"""

from __future__ import annotations

import sys

from octavo.cli.bars import bars
from octavo.cli.parser import Arguments
from octavo.weights import resolve_model, verify


def run(options: Arguments) -> int:
    """Print the model's path; with --verify also each file's hash."""
    path = resolve_model(options.model, progress=bars())
    print(path)
    if options.verify:
        for file in verify(path, progress=bars()):
            known = "matches" if file.recorded else "no hash to compare with"
            print(f"{file.sha256}  {file.path.name}  {known}", file=sys.stderr)
    return 0
