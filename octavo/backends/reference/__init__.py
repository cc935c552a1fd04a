"""The numpy backend that defines correct."""

from octavo.backends.reference.backend import ReferenceBackend, load

__all__ = ["ReferenceBackend", "load"]
