"""The native CPU backend: C++ kernels behind a C ABI, no PyTorch."""

from octavo.backends.native.backend import NativeBackend, load
from octavo.backends.native.ceilings import Ceilings, measure_ceilings
from octavo.backends.native.kept import Packed
from octavo.backends.native.library import available_isas, best_isa, load_library

__all__ = [
    "Ceilings",
    "NativeBackend",
    "Packed",
    "available_isas",
    "best_isa",
    "load",
    "load_library",
    "measure_ceilings",
]
