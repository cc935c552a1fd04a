"""What the routes share: the engine's client, the options, and whether requests are taken."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo.base.errors import ConfigError, EngineDeadError, EngineError
from octavo.client import AsyncLLM
from octavo.config import ServerArgs


@dataclass
class ServerState:
    """served_names: what clients may call the model. keys: digests of the API keys."""

    llm: AsyncLLM
    options: ServerArgs
    served_names: Sequence[str]
    keys: tuple[bytes, ...] = ()
    requests: dict[tuple[str, int], int] = field(default_factory=dict)

    def check_open(self) -> None:
        """Raise EngineError (503) unless the engine takes requests."""
        state = self.llm.state
        if state == "dead":
            raise EngineDeadError(f"the engine is dead: {self.llm.dead_cause}")
        if state != "ready":
            raise EngineError(f"the engine is {state}")

    def key_is_valid(self, given: str) -> bool:
        """Compare with every key in constant time; no early way out."""
        digest = _digest(given)
        valid = False
        for key in self.keys:
            valid |= hmac.compare_digest(digest, key)
        return valid


def key_digests(options: ServerArgs, environment_key: str | None) -> tuple[bytes, ...]:
    """Digests of all keys: flags, file, environment. Raises ConfigError for a bad file."""
    keys = [*options.api_key, *([environment_key] if environment_key else [])]
    if options.api_key_file is not None:
        try:
            lines = Path(options.api_key_file).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "--api-key-file", value=options.api_key_file, limit=f"a readable file ({error})"
            ) from None
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise ConfigError(
                "--api-key-file", value=options.api_key_file, limit="a file with a key per line"
            )
        keys += found
    if any(not key for key in keys):
        raise ConfigError("--api-key", value="", limit="a key that is not empty")
    return tuple(_digest(key) for key in keys)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
