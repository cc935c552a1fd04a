"""The bytes each token id adds to the text, packed: one blob and one offset per id.

    offsets:  o0   o1      o2   …        token i is blob[offsets[i] : offsets[i + 1]]
    blob:     │ t0 │  t1   │ t2 │ …

262,144 tokens take 3 MB this way and 15 MB as a list of `bytes` objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import overload

import numpy as np

from octavo.text.rebuild import SPACE_MARK, byte_alphabet

_SEPARATOR = "\U0010ffff"  # a noncharacter: hardly in a vocabulary, and then handled


class TokenBytes(Sequence[bytes]):
    """bytes by token id, read only."""

    __slots__ = ("_blob", "_offsets")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._blob = b"".join(pieces)
        self._offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.uint32).data

    def packed(self) -> tuple[bytes, bytes]:
        """(blob, offsets as native uint32): what another process needs to have the same table."""
        return self._blob, self._offsets.tobytes()

    @classmethod
    def from_packed(cls, blob: bytes, offsets: bytes) -> TokenBytes:
        """The inverse of `packed`."""
        table = cls.__new__(cls)
        table._blob = blob
        table._offsets = np.frombuffer(offsets, np.uint32).data
        return table

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"token id {index} is outside [0, {len(self)})")
        return self._blob[self._offsets[index] : self._offsets[index + 1]]


def byte_level_bytes(pieces: list[str], added: Iterable[int]) -> TokenBytes:
    """Pieces are written in GPT-2's byte alphabet; added tokens are literal text."""
    literal = {i: pieces[i].encode("utf-8", "replace") for i in added}
    kept = ["" if i in literal else piece for i, piece in enumerate(pieces)] if literal else pieces
    table = {ord(char): byte for byte, char in enumerate(byte_alphabet())}
    try:
        blob = "".join(kept).translate(table).encode("latin-1")
    except UnicodeEncodeError:  # a piece with a character outside the alphabet is literal, too
        outside = {i for i, piece in enumerate(kept) if not table.keys() >= set(map(ord, piece))}
        return byte_level_bytes(pieces, outside.union(literal))
    out = []
    start = 0
    for piece in kept:
        out.append(blob[start : start + len(piece)])
        start += len(piece)
    for i, text in literal.items():
        out[i] = text
    return TokenBytes(out)


def sentencepiece_bytes(pieces: list[str], byte_ids: Mapping[int, int]) -> TokenBytes:
    """`▁` stands for a space; `byte_ids` are the ids of `<0x00>` … `<0xFF>` with their bytes."""
    joined = _SEPARATOR.join(pieces)
    if joined.count(_SEPARATOR) == len(pieces) - 1:  # one pass over all pieces in C
        blob = joined.replace(SPACE_MARK, " ").encode("utf-8", "replace")
        out = blob.split(_SEPARATOR.encode())
    else:
        out = [piece.replace(SPACE_MARK, " ").encode("utf-8", "replace") for piece in pieces]
    for i, byte in byte_ids.items():
        out[i] = bytes((byte,))
    return TokenBytes(out)
