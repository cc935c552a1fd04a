"""From options to a frozen config, with the decider and the reason of every value.

`resolve` is pure: it looks at nothing but its arguments.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo.base.errors import ConfigError
from octavo.config.args import EngineArgs, ServerArgs
from octavo.config.machine import Machine
from octavo.program.program import KvLayout

BACKENDS = ("native", "reference")
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx", "neon")
# What each backend can cache keys and values as; the first is what "auto" takes.
KV_DTYPES_OF = {"native": ("bfloat16", "int8"), "reference": ("float32",)}

# The KV pool takes at most this share of the memory that is left beside everything else, and by
# default no more than this many bytes: pages are touched only as blocks are first used, but a
# machine shared with others should not be promised away.
_POOL_SHARE = 0.5
_POOL_DEFAULT_MOST = 4 * 2**30


@dataclass(frozen=True)
class ModelFacts:
    """What a model says about itself before its weights are read."""

    max_position: int
    kv: KvLayout


@dataclass(frozen=True)
class Decision:
    """Who decided a value ("user", "model", "machine" or "default") and why."""

    value: object
    by: str
    why: str


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine runs with. Every field is settled; see `EngineArgs` for meanings."""

    model: str
    served_model_name: tuple[str, ...]
    max_model_len: int
    chat_template: str | None
    generation_config: str
    seed: int | None
    block_size: int
    kv_cache_dtype: str
    num_blocks: int
    kv_cache_memory_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int
    async_scheduling: bool
    packed_cache: bool
    backend: str
    threads: int
    isa: str | None
    decisions: dict[str, Decision]


def blocks_for(layout: KvLayout, num_tokens: int, chunk: int) -> int:
    """Most blocks that one request of `num_tokens` tokens can hold at once, over all groups.

    A full group holds ceil(n / block). A window group holds the blocks that the oldest token of
    the step (`chunk` tokens) still sees, at most one more than (window − 1 + chunk) / block needs.
    """
    full = -(-num_tokens // layout.block_size)
    total = 0
    for group in layout.groups:
        if group.window is None:
            total += full
        else:
            total += min(full, (group.window - 1 + chunk - 1) // layout.block_size + 2)
    return total


def resolve(args: EngineArgs, machine: Machine, model: ModelFacts) -> EngineConfig:
    """Check every option, fill in what was left open. Raises ConfigError."""
    _check(args)
    decided: dict[str, Decision] = {}

    def decide(name: str, value: Any, by: str, why: str) -> Any:
        decided[name] = Decision(value, by, why)
        return value

    backend = args.backend if args.backend != "auto" else "native"
    decide("backend", backend, "user" if args.backend != "auto" else "default", "the CPU kernels")
    if args.threads is None:
        threads = decide("threads", machine.cores, "machine", "cores this process may use")
    else:
        threads = decide("threads", args.threads, "user", "--threads")
    max_model_len = _max_model_len(args, model, decide)
    kv_cache_dtype = _kv_cache_dtype(args, backend, decide)
    max_num_seqs = args.max_num_seqs
    pool_bytes, num_blocks = _pool(args, machine, model, max_model_len, kv_cache_dtype, decide)
    defaults = asdict(EngineArgs())
    for item in fields(EngineArgs):
        if item.name not in decided:
            value = getattr(args, item.name)
            by = "default" if value == defaults[item.name] else "user"
            decide(item.name, value, by, item.metadata["help"])
    return EngineConfig(
        model=args.model,
        served_model_name=args.served_model_name or (args.model,),
        max_model_len=max_model_len,
        chat_template=args.chat_template,
        generation_config=args.generation_config,
        seed=args.seed,
        block_size=args.block_size,
        kv_cache_dtype=kv_cache_dtype,
        num_blocks=num_blocks,
        kv_cache_memory_bytes=pool_bytes,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_queued_reqs=args.max_num_queued_reqs,
        async_scheduling=args.async_scheduling,
        packed_cache=args.packed_cache,
        backend=backend,
        threads=threads,
        isa=args.isa,
        decisions=decided,
    )


def _max_model_len(args: EngineArgs, model: ModelFacts, decide: Any) -> int:
    if args.max_model_len is None:
        value = decide("max_model_len", model.max_position, "model", "the model's context")
    elif args.max_model_len > model.max_position:
        raise ConfigError(
            "--max-model-len",
            value=args.max_model_len,
            limit=f"at most the model's context of {model.max_position}",
            remedy="positions beyond it were never trained",
        )
    else:
        value = decide("max_model_len", args.max_model_len, "user", "--max-model-len")
    return int(value)


def _kv_cache_dtype(args: EngineArgs, backend: str, decide: Any) -> str:
    known = KV_DTYPES_OF[backend]
    if args.kv_cache_dtype == "auto":
        return str(decide("kv_cache_dtype", known[0], "default", f"of the {backend} backend"))
    if args.kv_cache_dtype not in known:
        raise ConfigError(
            "--kv-cache-dtype",
            value=args.kv_cache_dtype,
            limit=f"auto, {' or '.join(known)} on the {backend} backend",
        )
    return str(decide("kv_cache_dtype", args.kv_cache_dtype, "user", "--kv-cache-dtype"))


def _pool(
    args: EngineArgs,
    machine: Machine,
    model: ModelFacts,
    max_model_len: int,
    kv_cache_dtype: str,
    decide: Any,
) -> tuple[int, int]:
    layout = model.kv
    block_bytes = layout.block_bytes(kv_cache_dtype)
    one = blocks_for(layout, max_model_len, args.max_num_batched_tokens)
    if args.kv_cache_memory_bytes is not None:
        num_blocks = args.kv_cache_memory_bytes // block_bytes
        least = blocks_for(layout, min(max_model_len, layout.block_size), 1)
        if num_blocks < least:
            raise ConfigError(
                "--kv-cache-memory-bytes",
                value=args.kv_cache_memory_bytes,
                limit=f"at least {least * block_bytes} bytes ({least} blocks of {block_bytes})",
            )
        by, why = "user", "--kv-cache-memory-bytes"
    else:
        useful = one * args.max_num_seqs
        room = int(min(machine.memory_available * _POOL_SHARE, _POOL_DEFAULT_MOST)) // block_bytes
        num_blocks = min(useful, room)
        if num_blocks < one:
            raise ConfigError(
                f"one request of {max_model_len} tokens needs {one} KV blocks of {block_bytes} "
                f"bytes; {machine.memory_available} bytes of memory are free, so the pool would "
                f"have {num_blocks}",
                remedy="lower --max-model-len or free memory",
            )
        by = "machine"
        why = (
            "all rows at full length"
            if num_blocks == useful
            else f"the least of {_POOL_SHARE:.0%} of free memory and {_POOL_DEFAULT_MOST >> 30} GiB"
        )
    if num_blocks * block_bytes > machine.memory_available:
        raise ConfigError(
            "--kv-cache-memory-bytes",
            value=args.kv_cache_memory_bytes,
            limit=f"at most the {machine.memory_available} bytes of free memory",
        )
    pool_bytes = num_blocks * block_bytes
    decide("kv_cache_memory_bytes", pool_bytes, by, why)
    decide("num_blocks", num_blocks, by, f"{block_bytes} bytes per block of {layout.block_size}")
    return pool_bytes, num_blocks


def _check(args: EngineArgs) -> None:
    size = args.block_size
    _require("--block-size", size, 2 <= size <= 256 and size & (size - 1) == 0, "2, 4, 8 … 256")
    _require("--max-num-seqs", args.max_num_seqs, 1 <= args.max_num_seqs <= 4096, "1 to 4096")
    tokens = args.max_num_batched_tokens
    limit = f"--max-num-seqs ({args.max_num_seqs}) to 65536"
    _require("--max-num-batched-tokens", tokens, args.max_num_seqs <= tokens <= 65536, limit)
    queued = args.max_num_queued_reqs
    _require("--max-num-queued-reqs", queued, 1 <= queued <= 10**6, "1 to 1000000")
    if args.threads is not None:
        _require("--threads", args.threads, 1 <= args.threads <= 1024, "1 to 1024")
    if args.max_model_len is not None:
        _require("--max-model-len", args.max_model_len, args.max_model_len >= 2, "at least 2")
    _choice("--backend", args.backend, ("auto", *BACKENDS))
    _choice("--generation-config", args.generation_config, ("auto", "vllm"))
    if args.isa is not None:
        _choice("--isa", args.isa, ISAS)


def check_server(options: ServerArgs, served_model_name: tuple[str, ...] = ()) -> None:
    """Check the server's options against their bounds. Raises ConfigError."""
    size, drain = options.max_body_bytes, options.drain_timeout_s
    _require("--max-body-bytes", size, 1024 <= size <= 2**31, "1024 to 2147483648")
    read = options.request_read_timeout_s
    _require("--request-read-timeout-s", read, 0 < read <= 3600, "more than 0, at most 3600")
    _require("--drain-timeout-s", drain, 0 <= drain <= 86400, "0 to 86400")
    _require("--port", options.port, 0 <= options.port <= 65535, "0 to 65535")
    names = all(name.strip() for name in served_model_name)
    _require("--served-model-name", served_model_name, names, "names that are not empty")


def _require(name: str, value: object, holds: bool, limit: str) -> None:
    if not holds:
        raise ConfigError(name, value=value, limit=limit)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    near = difflib.get_close_matches(value, choices, n=1)
    raise ConfigError(
        name,
        value=value,
        limit=f"one of {', '.join(choices)}",
        remedy=f"did you mean {near[0]}?" if near else None,
    )
