"""What a backend is to the runner: load once, then forward and sample.

The runner owns the request rows; a batch describes one call on them. All arrays are int32, C-
contiguous, and stay unchanged while the call runs. A call blocks until its work is done and lets
go of the GIL while it computes; the runner calls from one thread.

    n tokens of m sequences; sequence i is row seq_row[i] and owns tokens
    [seq_start[i], seq_start[i+1]); its context after the call is seq_len[i] tokens, so its tokens
    have positions [seq_len[i] − q, seq_len[i]), q = seq_start[i+1] − seq_start[i].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.base.step import TokenLogprobs

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One call of `forward`: at most `tile` tokens (the arena's size).

    tokens, positions: int32 [n].
    seq_start: int32 [m+1]; seq_row, seq_len: int32 [m].
    block_tables: int32 [groups, max_rows, max_blocks], the runner's own array.
    gather_token, gather_row: int32 [s], token index → row whose hidden state it becomes.
    """

    tokens: Int32
    positions: Int32
    seq_start: Int32
    seq_row: Int32
    seq_len: Int32
    block_tables: Int32
    gather_token: Int32
    gather_row: Int32


@dataclass(frozen=True, slots=True)
class RowSampling:
    """One row's sampling parameters, compiled: plain numbers and arrays, every id < vocab.

    min_len: stop_ids (EOS and the request's stop ids) are masked while the row is shorter.
    seed: 64 bits, key of the counter-based generator (see docs of sampling).
    bad_words: token sequences of length ≥ 1; the last token is masked when the rest matches the
        row's tail.
    num_logprobs: −1 none, else how many of the most likely to report beside the drawn token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    prompt_len: int = 0
    min_len: int = 0
    stop_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    bias_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    bias_values: Float32 = field(default_factory=lambda: np.empty(0, np.float32))
    allowed_ids: Int32 | None = None
    bad_words: tuple[Int32, ...] = ()
    num_logprobs: int = -1


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """One call of `sample`. rows: int32 [s], rows whose stored hidden state draws a token.

    row_tokens: int32 [max_rows, max_len], row_lens: int32 [max_rows], the runner's own arrays: the
    history that penalties and bad words look at; the drawn token gets position row_lens[row].
    """

    rows: Int32
    row_tokens: Int32
    row_lens: Int32


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """tokens: int32 [s], −1 where the row's logits are not finite or nothing survives the masks.

    logprobs: index into the batch → log-probabilities, for rows that asked.
    """

    tokens: Int32
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class WeightSource(Protocol):
    """Where a backend reads tensors from at load: raw bytes in the checkpoint's own format."""

    def dtype(self, name: str) -> str:
        """Format of a canonical tensor: "f32", "bf16", "q4_1", …"""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> NDArray[np.uint8]:
        """The tensor's raw bytes, fresh memory that the caller owns."""
        ...


@dataclass(frozen=True, slots=True)
class BackendLimits:
    """What a backend is built for. tile: tokens per forward call; sample_rows: rows per chunk.

    kv_dtype: a name in `octavo.program.program.KV_DTYPES` that the backend knows; "auto": its own.
    """

    max_rows: int
    max_len: int
    num_blocks: int
    tile: int = 512
    sample_rows: int = 32
    threads: int = 0
    kv_dtype: str = "auto"


class Backend(Protocol):
    """A loaded model on a device. Built by each backend's `load(program, weights, limits)`."""

    name: str

    def set_row(self, row: int, sampling: RowSampling) -> None:
        """Sampling parameters of a row that begins; before its first `sample`."""
        ...

    def forward(self, batch: ForwardBatch) -> None:
        """Compute the batch's tokens: writes their KV and the gathered rows' hidden state."""
        ...

    def sample(self, batch: SampleBatch) -> SampleOutput:
        """Draw one token for each row of the batch, in chunks of `sample_rows`."""
        ...

    def logits(self, rows: Int32) -> Float32:
        """[len(rows), vocab] raw logits of the rows' stored hidden states (tests, tools)."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Planned bytes by owner: "weights", "arena", "kv_pool", "rows", …"""
        ...

    def close(self) -> None:
        """Stop threads and give all memory back. Safe to call twice."""
        ...
