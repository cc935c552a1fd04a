"""The environment variables that octavo reads, all of them, in one place.

OCTAVO_ISA       force an instruction set, as --isa
OCTAVO_THREADS   compute threads, as --threads
OCTAVO_API_KEY   a key that clients must send, beside --api-key
XDG_CACHE_HOME   where models and rebuilt tokenizers are kept (default ~/.cache)
NO_COLOR         no colours in the terminal (read by rich)
HF_HOME, HF_HUB_OFFLINE, HF_TOKEN   read by huggingface_hub
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.base.errors import ConfigError


@dataclass(frozen=True)
class Environment:
    """The variables' values, parsed."""

    isa: str | None
    threads: int | None
    api_key: str | None
    cache_dir: Path


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Parse the variables (of this process by default). Raises ConfigError."""
    source = os.environ if variables is None else variables
    threads = source.get("OCTAVO_THREADS") or None
    if threads is not None and not threads.isdigit():
        raise ConfigError("OCTAVO_THREADS", value=threads, limit="a whole number of 1 or more")
    base = source.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Environment(
        isa=source.get("OCTAVO_ISA") or None,
        threads=None if threads is None else int(threads),
        api_key=source.get("OCTAVO_API_KEY") or None,
        cache_dir=Path(base) / "octavo",
    )
