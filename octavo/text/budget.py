"""What one template rendering may use: time, loop turns, characters produced, size of a value."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

MAX_VALUE = 8 << 20  # characters or elements of one value, all it refers to included
MAX_PRODUCED = 64 << 20  # characters and elements that operators, filters and methods make in all
MAX_TURNS = 2_000_000  # loop turns and calls in all

_ATOMS = (bool, int, float, type(None))


class LimitError(Exception):
    """A template ran past a limit, or asked for something the sandbox does not have."""


class RenderBudget:
    """Counts down during one rendering. Not shared between threads.

    time_limit_s: seconds from now. max_output: characters of the rendered text.
    """

    def __init__(self, time_limit_s: float, max_output: int) -> None:
        self._time_limit_s = time_limit_s
        self._deadline = time.monotonic() + time_limit_s
        self._max_value = min(MAX_VALUE, max_output)
        self._turns = MAX_TURNS
        self._produced = MAX_PRODUCED
        self._sizes: dict[int, int] = {}

    def tick(self) -> None:
        """One loop turn or call."""
        self._turns -= 1
        if self._turns < 0:
            raise LimitError(f"more than {MAX_TURNS} loop turns and calls")
        if time.monotonic() > self._deadline:
            raise LimitError(f"longer than {self._time_limit_s:g} s")

    def admit(self, value: Any) -> None:
        """Learn the sizes of the template's inputs, which outlive the rendering unchanged."""
        self._sizes = self._learn(value)

    def _learn(self, root: Any) -> dict[int, int]:
        """Sizes by id of all containers under `root`, children before parents."""
        sizes: dict[int, int] = {}
        stack = [(root, False)]
        total = 0
        while stack:
            value, ready = stack.pop()
            if not isinstance(value, (list, tuple, dict)) or id(value) in sizes:
                continue
            children = _children(value)
            if ready:
                sizes[id(value)] = 1 + sum(sizes.get(id(c), _atom_size(c)) for c in children)
                continue
            total += 1 + len(children)
            if total > MAX_VALUE:
                raise LimitError(f"input of more than {MAX_VALUE} elements")
            stack.append((value, True))
            stack.extend((child, False) for child in children)
        return sizes

    def measure(self, value: Any, *, as_text: bool = False) -> int:
        """Characters and elements of `value`; what it refers to counts as often as it occurs.

        as_text: the value is about to be written out, so it must be text, numbers or containers of
        them. Raises LimitError above the size limit.
        """
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, _ATOMS):
            size = 24
        else:
            size = self._walk(value, as_text)
        return self.check(size)

    def _walk(self, root: Any, as_text: bool) -> int:
        size = 0
        stack = [root]
        while stack:
            value = stack.pop()
            known = self._sizes.get(id(value))
            if known is not None:
                size += known
            elif isinstance(value, (list, tuple, dict, KeysView, ValuesView, ItemsView)):
                size += 1
                stack.extend(_children(value))
            elif as_text and not isinstance(value, (str, *_ATOMS)) and not _is_undefined(value):
                raise LimitError(f"a value of type {type(value).__name__} can't be written out")
            else:
                size += _atom_size(value)
            self.check(size + len(stack))
        return size

    def check(self, size: int) -> int:
        """Refuse a value of `size` before it is made."""
        if size > self._max_value:
            raise LimitError(f"a value larger than {self._max_value} characters")
        return size

    def charge(self, value: Any) -> Any:
        """Account for a value that was made; returns it."""
        if isinstance(value, (str, list, tuple, dict)):
            self._produced -= self.check(len(value))
            if self._produced < 0:
                raise LimitError(f"more than {MAX_PRODUCED} characters produced")
        return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value)


def _atom_size(value: Any) -> int:
    return len(value) if isinstance(value, str) else 24


def _is_undefined(value: Any) -> bool:
    from jinja2 import Undefined

    return isinstance(value, Undefined)
