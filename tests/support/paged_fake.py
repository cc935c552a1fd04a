"""A backend without a model: the next token is a hash of the row's whole context.

The context is read back through the block tables from a paged store, so a wrong block, length,
position or chunk gives another token, and so does a block that was reused too early.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from octavo.backends.api import (
    Float32,
    ForwardBatch,
    Int32,
    RowSampling,
    SampleBatch,
    SampleOutput,
)
from octavo.base.step import TokenLogprobs

_MASK = 2**64 - 1


def context_hash(tokens: list[int]) -> int:
    value = 0xCBF29CE484222325
    for token in tokens:
        value = ((value ^ token) * 0x100000001B3) & _MASK
        value ^= value >> 29
    return value


class PagedFake:
    """vocab tokens; blocks of `block_size` entries. `fail_on`: forward raises for these tokens;
    `nan_on`: rows whose last token is one of these have logits that are not finite."""

    name = "fake"

    def __init__(
        self,
        *,
        vocab: int = 97,
        block_size: int = 4,
        num_blocks: int = 64,
        max_rows: int = 8,
        groups: int = 1,
        fail_on: frozenset[int] = frozenset(),
        nan_on: frozenset[int] = frozenset(),
    ) -> None:
        self.vocab = vocab
        self.block_size = block_size
        self.kv = np.full((num_blocks, block_size), -1, np.int64)
        self.groups = groups
        self.hidden: list[tuple[int, int]] = [(0, -1)] * max_rows  # hash, last token
        self.sampling: dict[int, RowSampling] = {}
        self.fail_on = fail_on
        self.nan_on = nan_on
        self.calls: list[int] = []  # tokens per forward call
        self.gate: threading.Event | None = None
        self.closed = False

    def set_row(self, row: int, sampling: RowSampling) -> None:
        self.sampling[row] = sampling

    def forward(self, batch: ForwardBatch) -> None:
        if self.gate is not None:
            self.gate.wait()
        self.calls.append(len(batch.tokens))
        if self.fail_on & set(batch.tokens.tolist()):
            raise RuntimeError("a token that breaks the kernel")
        assert batch.seq_start[0] == 0
        assert batch.seq_start[-1] == len(batch.tokens)
        size = self.block_size
        for i, row in enumerate(batch.seq_row.tolist()):
            begin, end = int(batch.seq_start[i]), int(batch.seq_start[i + 1])
            stop = int(batch.seq_len[i])
            expected = np.arange(stop - (end - begin), stop)
            assert (batch.positions[begin:end] == expected).all()
            for table in batch.block_tables[:, row]:
                for t in range(begin, end):
                    position = int(batch.positions[t])
                    self.kv[table[position // size], position % size] = batch.tokens[t]
        ends = batch.seq_start[1:].tolist()
        for token_index, row in zip(
            batch.gather_token.tolist(), batch.gather_row.tolist(), strict=True
        ):
            i = ends.index(token_index + 1)
            assert int(batch.seq_row[i]) == row
            last = self._read(batch.block_tables[-1, row], int(batch.seq_len[i]))
            self.hidden[row] = (context_hash(last), last[-1])

    def _read(self, table: Int32, length: int) -> list[int]:
        size = self.block_size
        return [int(self.kv[table[p // size], p % size]) for p in range(length)]

    def sample(self, batch: SampleBatch) -> SampleOutput:
        tokens = np.empty(len(batch.rows), np.int32)
        logprobs = {}
        for i, row in enumerate(batch.rows.tolist()):
            value, last = self.hidden[row]
            sampling = self.sampling[row]
            length = int(batch.row_lens[row])
            assert int(batch.row_tokens[row, length - 1]) == last
            if sampling.temperature > 0:
                value = context_hash([value & 0xFFFF, sampling.seed, length])
            banned = set(sampling.stop_ids.tolist()) if length < sampling.min_len else set()
            token = value % self.vocab
            while token in banned:
                token = (token + 1) % self.vocab
            if sampling.allowed_ids is not None:
                token = int(sampling.allowed_ids[value % len(sampling.allowed_ids)])
            tokens[i] = -1 if last in self.nan_on else token
            if sampling.num_logprobs >= 0 and tokens[i] >= 0:
                top = np.arange(sampling.num_logprobs, dtype=np.int32)
                logprobs[i] = TokenLogprobs(-0.5, 1, top, -top.astype(np.float32))
        return SampleOutput(tokens, logprobs)

    def logits(self, rows: Int32) -> Float32:
        raise NotImplementedError

    def memory(self) -> Mapping[str, int]:
        return {"kv_pool": self.kv.nbytes}

    def close(self) -> None:
        self.closed = True


def expected_tokens(prompt: list[int], count: int, *, vocab: int = 97) -> list[int]:
    """What `PagedFake` generates greedily after `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(context_hash(tokens) % vocab)
    return tokens[len(prompt) :]
