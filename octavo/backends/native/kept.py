"""Packed weights from start to start: which file, and how they come from it and go to it."""

from __future__ import annotations

import ctypes as c
import logging
import os
from dataclasses import dataclass

from octavo.backends.api import WeightSource
from octavo.backends.native.library import ABI_VERSION
from octavo.base.environment import read_environment
from octavo.program.program import Program
from octavo.weights.packed import (
    HEADER_BYTES,
    LEAST_BYTES,
    PackedCache,
    PackedWriter,
    packed_key,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Packed:
    """identity: a name that changes whenever any byte of the checkpoint does."""

    cache: PackedCache
    identity: str

    @classmethod
    def of(cls, identity: str) -> Packed:
        """In the cache folder."""
        return cls(PackedCache(read_environment().cache_dir / "packed"), identity)

    def entry(
        self, library: c.CDLL, model: int, program: Program, weights: WeightSource
    ) -> PackedEntry | None:
        """This program's entry; None for weights so small that packing them takes no time."""
        nbytes = int(library.octavo_weights_bytes(model))
        if nbytes < LEAST_BYTES:
            return None
        tensors = (f"{t.name} {weights.dtype(t.name)} {t.shape}" for t in program.tensors)
        # The spec decides what else lies there: the rope frequencies.
        key = packed_key(ABI_VERSION, self.identity, repr(program.spec), *tensors)
        return PackedEntry(self.cache, key, library, model, nbytes)


@dataclass(frozen=True)
class PackedEntry:
    """One model's file and the memory of a model that is being loaded."""

    cache: PackedCache
    key: bytes
    library: c.CDLL
    model: int
    nbytes: int

    def read(self) -> bool:
        """Fill the model's memory; False if there is no whole file."""
        found = self.cache.open(self.key, self.nbytes)
        if found is None:
            return False
        checksum = c.c_uint64()
        try:
            code = self.library.octavo_read_weights(
                self.model, found.fd, HEADER_BYTES, c.byref(checksum)
            )
        finally:
            os.close(found.fd)
        if code == 0 and checksum.value == found.checksum:
            return True
        self.cache.discard(self.key)
        return False

    def write(self) -> PackedWriter:
        """Keep the loaded weights, in the background."""
        address = self.library.octavo_weights_data(self.model)
        weights = memoryview((c.c_uint8 * self.nbytes).from_address(address)).cast("B")
        checksum = int(self.library.octavo_weights_checksum(self.model))
        return PackedWriter(self.cache, self.key, weights.toreadonly(), checksum)
