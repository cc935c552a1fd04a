"""octavo models"""

from __future__ import annotations

import msgspec

from octavo.cli.parser import Arguments
from octavo.weights import CATALOG, cached_models


def run(options: Arguments) -> int:
    """Built-in names first, then what else lies in the cache."""
    cached = {model.ref: model for model in cached_models()}
    rows = []
    for name, model in CATALOG.items():
        here = cached.pop(name, None)
        rows.append((name, model.nbytes, here.path if here else None, model.description))
    rows += [(ref, model.nbytes, model.path, "") for ref, model in sorted(cached.items())]
    if options.json:
        keys = ("model", "bytes", "path", "description")
        listing = [
            dict(zip(keys, (ref, size, path and str(path), text), strict=True))
            for ref, size, path, text in rows
        ]
        print(msgspec.json.encode(listing).decode())
        return 0
    width = max(len(ref) for ref, *_ in rows)
    for ref, size, path, text in rows:
        where = str(path) if path else "not fetched"
        print(f"{ref:<{width}}  {size / 1e6:8.1f} MB  {where}" + (f"  ({text})" if text else ""))
    return 0
