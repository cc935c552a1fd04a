"""The real small models, fetched once through octavo's own sources, driven directly."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import Backend, BackendLimits, ForwardBatch
from octavo.engine.model import OpenModel, open_model
from octavo.weights import resolve_model
from tests.support.op_programs import int32


@cache
def real_model(name: str) -> OpenModel:
    return open_model(resolve_model(name), block_size=16)


def real_path(name: str) -> Path:
    return resolve_model(name)


class OneRow:
    """One row, fed token by token or in chunks; `feed` returns the logits after the last."""

    def __init__(self, backend: Backend, model: OpenModel, max_len: int) -> None:
        self._backend = backend
        groups, size = len(model.program.kv.groups), model.program.kv.block_size
        blocks = -(-max_len // size)
        self._tables = int32(np.arange(groups * blocks).reshape(groups, 1, blocks))
        self.length = 0

    @staticmethod
    def limits(model: OpenModel, max_len: int, threads: int = 2) -> BackendLimits:
        groups, size = len(model.program.kv.groups), model.program.kv.block_size
        blocks = groups * -(-max_len // size)
        return BackendLimits(1, max_len, blocks, tile=512, sample_rows=1, threads=threads)

    def feed(self, tokens: list[int]) -> NDArray[np.float32]:
        for start in range(0, len(tokens), 512):
            part = tokens[start : start + 512]
            count, before = len(part), self.length
            self.length += count
            self._backend.forward(
                ForwardBatch(
                    tokens=int32(part),
                    positions=int32(range(before, self.length)),
                    seq_start=int32([0, count]),
                    seq_row=int32([0]),
                    seq_len=int32([self.length]),
                    block_tables=self._tables,
                    gather_token=int32([count - 1]),
                    gather_row=int32([0]),
                )
            )
        return np.asarray(self._backend.logits(int32([0]))[0])
