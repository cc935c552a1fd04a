"""Reading a checkpoint's config so that nothing in it is ignored by accident.

A reader takes each key that it implements; `finish` then refuses every key that nobody took and
that is not known to be inert, naming the nearest key that octavo knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, overload

from octavo.base.errors import ModelFileError, UnsupportedModelError

_MISSING = object()

# A config that lies about these could make octavo take any amount of memory before a tensor's shape
# shows the lie.
MOST_LAYERS = 1024
MOST_HEAD_DIM = 4096
# Everything is computed in float32: a number beyond its normal range could only become 0 or inf.
LEAST_NUMBER = 2.0**-126
MOST_NUMBER = 2.0**127


class Config:
    """A view of a config mapping that remembers which keys were taken.

    where: the file, for messages. prefix: of every key (GGUF: "llama.").
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.where = where
        self._values = values
        self._prefix = prefix
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is; None counts as absent."""
        name = self._prefix + key
        self._taken.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def given(self, key: str) -> bool:
        """Whether the key is there, be it null."""
        return self._prefix + key in self._values

    def number(self, key: str, default: float | object = _MISSING) -> float:
        """A number above 0 that float32 can hold."""
        value = self.take(key, default)
        if value is _MISSING or isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong(key, value, "a number")
        if not LEAST_NUMBER <= value <= MOST_NUMBER:  # also false for NaN
            self._wrong(key, value, f"a number in [{LEAST_NUMBER:.2g}, {MOST_NUMBER:.2g}]")
        return float(value)

    @overload
    def whole(self, key: str, *, most: int = ...) -> int: ...
    @overload
    def whole(self, key: str, default: int, *, most: int = ...) -> int: ...
    @overload
    def whole(self, key: str, default: None, *, most: int = ...) -> int | None: ...
    def whole(self, key: str, default: Any = _MISSING, *, most: int = 2**31) -> int | None:
        """A whole number in [1, most], be it given or the default."""
        value = self.take(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self._wrong(key, value, f"a whole number in [1, {most}]")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
        return bool(value)

    def require(self, key: str, allowed: Collection[Any], default: Any = None) -> None:
        """Refuse a value that octavo does not implement."""
        value = self.take(key, default)
        if value is not None and not any(_equal(value, item) for item in allowed):
            limit = " or ".join(repr(item) for item in allowed) or "nothing"
            raise UnsupportedModelError(
                f"{self.where}: {self._prefix}{key}", value=value, limit=f"{limit} for now"
            )

    def sub(self, key: str) -> Config | None:
        """A nested object, with its own bookkeeping; the caller finishes it."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self._wrong(key, value, "an object")
        return Config(value, f"{self.where}: {self._prefix}{key}")

    def finish(self, inert: Collection[str] = ()) -> None:
        """Refuse what was not taken and is not inert (full names, or prefixes ending in '.')."""
        prefixes = tuple(name for name in inert if name.endswith("."))
        known = self._taken | set(inert)
        for name, value in self._values.items():
            ours = name.startswith(self._prefix)
            if not ours or name in known or value is None or name.startswith(prefixes):
                continue
            near = difflib.get_close_matches(name, known, n=1)
            raise UnsupportedModelError(
                f"{self.where}: octavo does not know the key {name}",
                value=value,
                remedy=f"the nearest that it knows is {near[0]}" if near else None,
            )

    def _wrong(self, key: str, value: Any, expected: str) -> None:
        found = "nothing" if value is _MISSING else value
        raise ModelFileError(self.where, self._prefix + key, found=found, expected=expected)


def _equal(value: Any, item: Any) -> bool:
    """Plain equality; an array, which compares value by value, equals nothing."""
    same = value == item
    return isinstance(same, bool) and same
