"""From the rows and counts of a step to forward calls of at most a tile of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import ForwardBatch
from octavo.base.step import Int32
from octavo.runner.rows import Rows


@dataclass(frozen=True, slots=True)
class Span:
    """What a step computes: tokens [computed, computed + count) of each row.

    rows, computed, counts: int32 [m]. samples: bool [m], the row's last token is among them and its
    hidden state is kept for a draw.
    """

    rows: Int32
    computed: Int32
    counts: Int32
    samples: NDArray[np.bool_]

    def only(self, index: int) -> Span:
        one = slice(index, index + 1)
        return Span(self.rows[one], self.computed[one], self.counts[one], self.samples[one])

    def nonempty(self) -> Span:
        keep = self.counts > 0
        if keep.all():
            return self
        return Span(self.rows[keep], self.computed[keep], self.counts[keep], self.samples[keep])


def forward_batches(rows: Rows, span: Span, tile: int) -> Iterator[ForwardBatch]:
    """Cut a span into calls of at most `tile` tokens; a row's tokens may lie in several.

    tokens   │ row 3 ………… │ row 0 …│ 5 │ 2 │ row 7 ……………………… │
    calls    │<── tile ──>│<── tile ──>│<── tile ──>│<- rest ->│
    """
    span = span.nonempty()
    sequences = len(span.rows)
    if sequences == 0:
        return
    total = int(span.counts.sum())
    if total == sequences and total <= tile:  # all decode: one token per row
        yield _decode(rows, span)
        return
    ends = np.cumsum(span.counts, dtype=np.int32)
    starts = ends - span.counts
    of_row = np.repeat(span.rows, span.counts)
    positions = np.arange(total, dtype=np.int32)
    positions += np.repeat(span.computed - starts, span.counts)
    tokens = rows.tokens[of_row, positions]
    for begin in range(0, total, tile):
        end = min(total, begin + tile)
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(starts, end, side="left"))
        part = slice(first, last)
        upper = np.minimum(ends[part], end)
        seq_start = np.empty(last - first + 1, np.int32)
        seq_start[0] = 0
        seq_start[1:] = upper - begin
        gather = span.samples[part] & (ends[part] <= end)
        yield ForwardBatch(
            tokens=tokens[begin:end],
            positions=positions[begin:end],
            seq_start=seq_start,
            seq_row=span.rows[part],
            seq_len=span.computed[part] + (upper - starts[part]),
            block_tables=rows.block_tables,
            gather_token=(ends[part] - (begin + 1))[gather],
            gather_row=span.rows[part][gather],
        )


def _decode(rows: Rows, span: Span) -> ForwardBatch:
    index = np.arange(len(span.rows) + 1, dtype=np.int32)
    every = bool(span.samples.all())
    return ForwardBatch(
        tokens=rows.tokens[span.rows, span.computed],
        positions=span.computed,
        seq_start=index,
        seq_row=span.rows,
        seq_len=span.computed + np.int32(1),
        block_tables=rows.block_tables,
        gather_token=index[:-1] if every else index[:-1][span.samples],
        gather_row=span.rows if every else span.rows[span.samples],
    )
