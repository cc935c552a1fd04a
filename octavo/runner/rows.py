"""The state of request rows: the truth about tokens and lengths. Owned by the device thread.

    row    tokens[row]: │ prompt …   │ generated … │ unused …  │
                        0        prompt_len    num_tokens   max_len

All arrays are allocated once for `max_rows` rows; their pages are touched as rows first use them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.base.sampling_params import MAX_STOP_TOKEN_IDS
from octavo.base.step import Int32, RowJoin
from octavo.text.stops import StopMatcher
from octavo.text.token_bytes import TokenBytes

_MOST_STOP_IDS = MAX_STOP_TOKEN_IDS + 64  # a request's own, and the model's EOS ids


class TokenTable:
    """The bytes of every token id and which ids are special: what stop strings are matched on."""

    def __init__(self, token_bytes: TokenBytes, special: Sequence[int]) -> None:
        self._bytes = token_bytes
        self._size = len(token_bytes)
        self._special = frozenset(special)

    def text_bytes(self, token: int, skip_special: bool) -> bytes:
        """What the token adds to the reply; b"" for skipped and unknown ids."""
        if token >= self._size or (skip_special and token in self._special):
            return b""
        return self._bytes[token]


class RowStops:
    """Stop strings of one row, matched on the bytes of the tokens after the first `min_tokens`."""

    def __init__(self, join: RowJoin, table: TokenTable) -> None:
        params = join.params
        self.strings = params.stop_strings
        self._table = table
        self._skip_special = params.skip_special_tokens
        self._matcher = StopMatcher([text.encode() for text in self.strings])
        self._from = join.prompt_len + params.min_tokens  # position of the first token that counts
        for position in range(self._from, len(join.tokens)):  # generated before a preemption
            self.push(position, int(join.tokens[position]))

    def push(self, position: int, token: int) -> str | None:
        """The stop string that `token` at `position` completes, if any."""
        if position < self._from:
            return None
        match = self._matcher.push(self._table.text_bytes(token, self._skip_special))
        return None if match is None else self.strings[match.stop]


class Rows:
    """Arrays of request state.

    tokens: int32 [max_rows, max_len]. num_tokens, num_computed, max_len: int32 [max_rows].
    ended: bool [max_rows], finished rows compute nothing. active: bool [max_rows].
    block_tables: int32 [groups, max_rows, max_blocks].
    stop_ids: int32 [k, max_rows], −1 where unused; EOS ids are marked in `eos`.
    """

    def __init__(self, max_rows: int, max_len: int, groups: int, block_size: int) -> None:
        max_blocks = -(-max_len // block_size)
        self.max_rows = max_rows
        self.width = max_len
        self.tokens: Int32 = np.zeros((max_rows, max_len), np.int32)
        self.num_tokens: Int32 = np.zeros(max_rows, np.int32)
        self.num_computed: Int32 = np.zeros(max_rows, np.int32)
        self.max_len: Int32 = np.zeros(max_rows, np.int32)
        self.ended: NDArray[np.bool_] = np.ones(max_rows, np.bool_)
        self.active: NDArray[np.bool_] = np.zeros(max_rows, np.bool_)
        self.block_tables: Int32 = np.zeros((groups, max_rows, max_blocks), np.int32)
        self.stop_ids: Int32 = np.full((_MOST_STOP_IDS, max_rows), -1, np.int32)
        self.stop_width = 0  # rows of stop_ids that any active row uses
        self.eos: list[frozenset[int]] = [frozenset()] * max_rows
        self.stops: dict[int, RowStops] = {}
        self._stop_counts = np.zeros(max_rows, np.int32)

    @property
    def nbytes(self) -> int:
        arrays = (
            self.tokens,
            self.num_tokens,
            self.num_computed,
            self.max_len,
            self.ended,
            self.active,
            self.block_tables,
            self.stop_ids,
        )
        return sum(array.nbytes for array in arrays)

    @staticmethod
    def plan_bytes(max_rows: int, max_len: int, groups: int, block_size: int) -> int:
        """What `Rows(…)` will take, for the plan of memory."""
        per_row = 4 * max_len + 14 + 4 * groups * -(-max_len // block_size) + 4 * _MOST_STOP_IDS
        return max_rows * per_row

    def leave(self, row: int) -> None:
        self.active[row] = False
        self.ended[row] = True
        self.stops.pop(row, None)
        self._stop_counts[row] = 0
        self.stop_width = int(self._stop_counts.max())

    def join(self, join: RowJoin, table: TokenTable | None) -> None:
        """Begin a row, free or not: what it held is forgotten. ValueError for what does not fit."""
        row, count = join.row, len(join.tokens)
        self.leave(row)
        if count > self.width or join.max_len > self.width:
            raise ValueError(f"{max(count, join.max_len)} tokens in a row of {self.width}")
        ids = sorted({*join.eos_ids, *(join.params.stop_token_ids or ())})
        if len(ids) > _MOST_STOP_IDS:
            raise ValueError(f"{len(ids)} stop ids, at most {_MOST_STOP_IDS}")
        if join.params.stop_strings:
            if table is None:
                raise ValueError("stop strings need the token table, which was not sent")
            self.stops[row] = RowStops(join, table)
        self.tokens[row, :count] = join.tokens
        self.num_tokens[row] = count
        self.num_computed[row] = join.num_computed
        self.max_len[row] = join.max_len
        self.eos[row] = frozenset(join.eos_ids)
        self.stop_ids[:, row] = -1
        self.stop_ids[: len(ids), row] = ids
        self._stop_counts[row] = len(ids)
        self.stop_width = int(self._stop_counts.max())
        self.active[row] = True
        self.ended[row] = False
