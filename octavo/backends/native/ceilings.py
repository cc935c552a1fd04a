"""The machine's two ceilings, measured: reading memory and multiplying int8."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.native.library import load_library


@dataclass(frozen=True)
class Ceilings:
    """read_bytes_per_s: from huge pages, all threads. int8_ops_per_s: 2 per multiply-add."""

    read_bytes_per_s: float
    int8_ops_per_s: float


def measure_ceilings(threads: int, read_bytes: int) -> Ceilings:
    """Best of several passes over `read_bytes` of memory; of the chosen instruction set.

    How fast memory reads depends on how much of it the caches hold, so pass what the weights take.
    """
    library = load_library()
    return Ceilings(
        read_bytes_per_s=float(library.octavo_read_bandwidth(threads, read_bytes)),
        int8_ops_per_s=float(library.octavo_matrix_rate(threads)),
    )
