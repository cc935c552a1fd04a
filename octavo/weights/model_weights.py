"""A checkpoint's tensors by their canonical names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.weights.checkpoint import Checkpoint


class ModelWeights:
    """The `WeightSource` that backends load from. name_of: canonical name → the checkpoint's."""

    def __init__(self, checkpoint: Checkpoint, name_of: Callable[[str], str]) -> None:
        self._checkpoint = checkpoint
        self._name_of = name_of

    def dtype(self, name: str) -> str:
        return self._checkpoint.tensors[self._name_of(name)].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.tensors[self._name_of(name)].shape

    def nbytes(self, name: str) -> int:
        return self._checkpoint.tensors[self._name_of(name)].nbytes

    def read(self, name: str) -> NDArray[np.uint8]:
        return self._checkpoint.read(self._name_of(name))
