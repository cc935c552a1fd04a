"""Binding of `liboctavo.so`: structures that mirror csrc/tape.h and csrc/capi.cpp, and loading."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterable
from pathlib import Path

from octavo.base.errors import ConfigError, EngineStartError

ABI_VERSION = 3
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx", "neon")
FORMATS = {
    name: number
    for number, name in enumerate(
        ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
    )
}
MOST_LOGPROBS = 20

_REMEDY = "build it with `pip install .` (or `make native` in a source tree)"


class Record(c.Structure):
    """One tape record; see csrc/tape.h for what each kind reads."""

    _fields_ = (
        ("kind", c.c_int32),
        ("new_stage", c.c_int32),
        ("weight", c.c_int32 * 4),
        ("vector", c.c_int32 * 4),
        ("n", c.c_int32 * 8),
        ("f", c.c_float * 2),
        ("at", c.c_int64 * 8),
    )


class Dims(c.Structure):
    _fields_ = (
        *(
            (name, c.c_int32)
            for name in (
                "threads",
                "max_rows",
                "max_blocks",
                "groups",
                "num_blocks",
                "block_size",
                "kv_heads",
                "head_dim",
                "layers_per_group",
                "tile",
                "sample_rows",
                "hidden",
                "vocab",
                "heads",
                "kv_type",
                "padding",
            )
        ),
        ("arena_bytes", c.c_int64),
        ("weight_bytes", c.c_int64),
    )


class Batch(c.Structure):
    _fields_ = (
        *((name, c.c_int32) for name in ("rows", "sequences", "gathers")),
        *(
            (name, c.c_void_p)
            for name in (
                "tokens",
                "positions",
                "seq_start",
                "seq_row",
                "seq_len",
                "tables",
                "gather_token",
                "gather_row",
                "sample_row",
                "row_tokens",
                "row_lens",
            )
        ),
        ("row_stride", c.c_int64),
        ("drawn", c.c_void_p),
    )


class Drawn(c.Structure):
    _fields_ = (
        ("token", c.c_int32),
        ("rank", c.c_int32),
        ("tops", c.c_int32),
        ("padding", c.c_int32),
        ("logprob", c.c_float),
        ("top_id", c.c_int32 * MOST_LOGPROBS),
        ("top", c.c_float * MOST_LOGPROBS),
    )


class RowArguments(c.Structure):
    _fields_ = (
        *(
            (name, c.c_float)
            for name in (
                "temperature",
                "top_p",
                "min_p",
                "repetition",
                "presence",
                "frequency",
            )
        ),
        *((name, c.c_int32) for name in ("top_k", "prompt_len", "min_len", "num_logprobs")),
        ("seed", c.c_uint64),
        *(
            (name, c.c_int32)
            for name in ("stops", "biases", "alloweds", "bad_tokens", "bad_words", "padding")
        ),
        *(
            (name, c.c_void_p)
            for name in ("stop_ids", "bias_ids", "allowed_ids", "bad_ids", "bad_ends", "bias")
        ),
    )


_P = c.c_void_p
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "octavo_abi_version": (c.c_int32, ()),
    "octavo_last_error": (c.c_char_p, ()),
    "octavo_detect_isa": (c.c_int32, ()),
    "octavo_isa_available": (c.c_int32, (c.c_int32,)),
    "octavo_select_isa": (c.c_int32, (c.c_int32,)),
    "octavo_weight_bytes": (c.c_int64, (c.c_int32, c.c_int64, c.c_int64)),
    "octavo_weight_act": (c.c_int32, (c.c_int32,)),
    "octavo_act_bytes": (c.c_int64, (c.c_int32, c.c_int64, c.c_int64)),
    "octavo_model_new": (_P, (c.POINTER(Dims),)),
    "octavo_model_free": (None, (_P,)),
    "octavo_scratch_bytes": (c.c_int64, (_P,)),
    "octavo_add_weight": (c.c_int32, (_P, c.c_int32, c.c_int64, c.c_int64, _P)),
    "octavo_weights_data": (_P, (_P,)),
    "octavo_weights_bytes": (c.c_int64, (_P,)),
    "octavo_weights_checksum": (c.c_uint64, (_P,)),
    "octavo_read_weights": (c.c_int32, (_P, c.c_int32, c.c_int64, c.POINTER(c.c_uint64))),
    "octavo_add_vector": (c.c_int32, (_P, _P, c.c_int64)),
    "octavo_set_tape": (c.c_int32, (_P, c.c_int32, _P, c.c_int32)),
    "octavo_set_row": (c.c_int32, (_P, c.c_int32, c.POINTER(RowArguments))),
    "octavo_forward": (c.c_int32, (_P, c.POINTER(Batch))),
    "octavo_sample": (c.c_int32, (_P, c.POINTER(Batch))),
    "octavo_read_bandwidth": (c.c_double, (c.c_int32, c.c_int64)),
    "octavo_matrix_rate": (c.c_double, (c.c_int32,)),
    "octavo_stages": (c.c_int32, (_P, c.c_int32)),
    "octavo_stage_times": (None, (_P, c.c_int32, _P)),
    "octavo_logits": (c.c_int32, (_P, c.POINTER(Batch), _P)),
}


def _folders() -> Iterable[str]:
    """Where the library may lie: a source tree's build first, then where it was installed."""
    from octavo.backends import native

    own = str(Path(__file__).parent)
    return (own, *(folder for folder in native.__path__ if folder != own))


def load_library() -> c.CDLL:
    """The library with its functions typed. Raises EngineStartError with a remedy."""
    for folder in _folders():
        path = Path(folder) / "liboctavo.so"
        if path.exists():
            break
    else:
        raise EngineStartError("the native library liboctavo.so is not built", remedy=_REMEDY)
    try:
        library = c.CDLL(os.fspath(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise EngineStartError(f"{path} cannot be loaded: {error}", remedy=_REMEDY) from None
    version = library.octavo_abi_version()
    if version != ABI_VERSION:
        raise EngineStartError(
            f"{path} is of another build", value=version, limit=f"{ABI_VERSION}", remedy=_REMEDY
        )
    return library


def best_isa(library: c.CDLL) -> str:
    """The best instruction set that this CPU and its operating system can run."""
    return ISAS[library.octavo_detect_isa()]


def available_isas(library: c.CDLL) -> tuple[str, ...]:
    """The instruction sets that this CPU can run, the best one last."""
    return tuple(isa for i, isa in enumerate(ISAS) if library.octavo_isa_available(i))


def select_isa(library: c.CDLL, name: str | None) -> str:
    """Choose the kernels, the best set by default. One choice per process: it is global."""
    chosen = best_isa(library) if name is None else name
    if chosen not in ISAS or library.octavo_select_isa(ISAS.index(chosen)) != 0:
        have = available_isas(library)
        raise ConfigError(
            "instruction set", value=chosen, limit=f"one this CPU has: {', '.join(have)}"
        )
    return chosen
