"""Stop strings: found in token bytes by the engine, cut from the text by the client.

Which match counts, for both: **the one that is complete first**; of those that end at the same
place, the one that begins first; of equal strings, the one listed first. A rule by ends is the only
one under which the answer does not depend on how the text was cut into tokens or deltas, so engine
and client agree, and nothing waits for a longer stop once a shorter one is there.

Stops are valid UTF-8 of whole characters, and a decoder starts afresh at every byte that begins
one, so a stop occurs in the bytes exactly where it occurs in the decoded text. The exception is
U+FFFD, which decoding also makes out of invalid bytes: if a stop contains it, the matcher decodes
as the client does and matches what comes out.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

_REPLACEMENT = "\ufffd".encode()


@dataclass(frozen=True, slots=True)
class Match:
    """stop: index into the stops. start: where it begins, in bytes from the start of the stream."""

    stop: int
    start: int


class StopMatcher:
    """Finds the first complete stop in a stream of token bytes; keeps the longest stop less a byte.

    stops: UTF-8 encoded, not empty. The bytes pushed are those of tokens that are part of the text
    (a skipped special token adds none).
    """

    __slots__ = ("_decoder", "_longest", "_stops", "_tail", "_taken")

    def __init__(self, stops: Sequence[bytes]) -> None:
        assert all(stops), "a stop is not empty"
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._tail = b""  # the last bytes seen, at most _longest - 1
        self._taken = 0  # bytes seen in all
        self._decoder = (
            codecs.getincrementaldecoder("utf-8")("replace")
            if any(_REPLACEMENT in stop for stop in stops)
            else None
        )

    def push(self, token_bytes: bytes) -> Match | None:
        """The stop that these bytes complete, if any. After a match the stream has ended."""
        if self._decoder is not None:
            token_bytes = self._decoder.decode(token_bytes).encode()
        if not self._stops or not token_bytes:
            return None
        text = self._tail + token_bytes
        held = len(self._tail)
        best: tuple[int, int, int] | None = None
        for i, stop in enumerate(self._stops):
            # an earlier occurrence would have been found by an earlier push
            at = text.find(stop, max(0, held - len(stop) + 1))
            if at >= 0 and (best is None or (at + len(stop), at, i) < best):
                best = (at + len(stop), at, i)
        if best is not None:
            return Match(stop=best[2], start=self._taken - held + best[1])
        self._taken += len(token_bytes)
        self._tail = text[len(text) - self._longest + 1 :] if len(text) >= self._longest else text
        return None


class StopCutter:
    """Cuts a stream of text at the first complete stop; holds only what may become one.

    include: the stop itself stays in the text.
    `stop` is the string that matched, or None while none has.
    """

    __slots__ = ("_held", "_include", "_stops", "stop")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        assert all(stops), "a stop is not empty"
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include
        self._held = ""  # the longest end of the text so far that a stop begins with
        self.stop: str | None = None

    def push(self, delta: str) -> str:
        """The text that is safe to show now; "" once a stop has matched."""
        if self.stop is not None:
            return ""
        if not self._stops:
            return delta
        text = self._held + delta
        best: tuple[int, int, int] | None = None
        for i, stop in enumerate(self._stops):
            at = text.find(stop)  # it can't begin before what was held
            if at >= 0 and (best is None or (at + len(stop), at, i) < best):
                best = (at + len(stop), at, i)
        if best is not None:
            end, start, i = best
            self.stop, self._held = self._stops[i], ""
            return text[: end if self._include else start]
        cut = min(self._hold_from(text, stop) for stop in self._stops)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """What was held when the text ended without a stop."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _hold_from(text: str, stop: str) -> int:
        """Where the longest end of `text` begins that `stop` begins with; len(text) if none."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0:
            if stop.startswith(text[at:]):
                return at
            at = text.find(stop[0], at + 1)
        return len(text)
