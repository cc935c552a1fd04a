"""From options and a model's path to an engine core, phase by phase.

reading the model    headers → ModelSpec → Program             (nothing large yet)
planning memory      options resolved, the ledger made or the configuration refused
loading weights      the backend takes its memory and packs the tensors
preparing rows       request state, scheduler, KV pool
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.backends.api import Backend, BackendLimits
from octavo.config import EngineArgs, EngineConfig, blocks_for, probe_machine, resolve
from octavo.engine.channel import EngineEnd
from octavo.engine.core import EngineCore
from octavo.engine.messages import DecisionInfo, EngineInfo, LedgerEntry
from octavo.engine.model import OpenModel, open_model
from octavo.kv import KvCache
from octavo.memory import Ledger, plan_memory
from octavo.runner import Rows, Runner
from octavo.sched import Scheduler, SchedulerConfig

Progress = Callable[[str, float | None], None]

TILE = 512  # most tokens per forward call: the arena's size, whatever the step's budget
SAMPLE_ROWS = 32  # rows per chunk of the output layer


class Phases:
    """Times the phases of a start; tells `progress` (name, None), then (name, milliseconds)."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.took_ms: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(name, None)
        started = time.monotonic()
        yield
        self.took_ms[name] = (time.monotonic() - started) * 1e3
        if self._progress is not None:
            self._progress(name, self.took_ms[name])


def build_engine(
    args: EngineArgs,
    model_path: Path,
    end: EngineEnd,
    *,
    check: bool = False,
    progress: Progress | None = None,
) -> EngineCore:
    """Start everything that an engine needs. Raises ModelError, ConfigError, EngineStartError."""
    phases = Phases(progress)
    with phases.phase("reading the model"):
        model = open_model(model_path, block_size=args.block_size)
    with phases.phase("planning memory"):
        config, ledger, limits = plan(args, model)
    with phases.phase("loading weights"):
        backend = load_backend(config, model, limits)
    try:
        with phases.phase("preparing rows"):
            kv = model.program.kv
            rows = Rows(limits.max_rows, limits.max_len, len(kv.groups), kv.block_size)
            scheduler = make_scheduler(config, model)
            measured = {**backend.memory(), "rows": rows.nbytes}
            info = _info(config, model, ledger.with_measured(measured), backend, phases)
        return EngineCore(
            scheduler=scheduler,
            runner=Runner(backend, rows, tile=limits.tile),
            end=end,
            info=info,
            depth=1 if config.async_scheduling else 0,
            seed=config.seed,
            check=check,
        )
    except BaseException:
        backend.close()
        raise


def plan(args: EngineArgs, model: OpenModel) -> tuple[EngineConfig, Ledger, BackendLimits]:
    """Settle the options and the memory. Raises ConfigError for what can't work."""
    machine = probe_machine()
    config = resolve(args, machine, model.facts)
    limits = BackendLimits(
        max_rows=config.max_num_seqs,
        max_len=config.max_model_len,
        num_blocks=config.num_blocks,
        tile=min(TILE, config.max_num_batched_tokens),
        sample_rows=min(SAMPLE_ROWS, config.max_num_seqs),
        threads=config.threads,
        kv_dtype=config.kv_cache_dtype,
    )
    kv = model.program.kv
    ledger = plan_memory(
        model.plan_bytes(config, tile=limits.tile, sample_rows=limits.sample_rows),
        available=machine.memory_available,
        block_bytes=kv.block_bytes(config.kv_cache_dtype),
        least_blocks=blocks_for(kv, config.max_model_len, config.max_num_batched_tokens),
    )
    return config, ledger, limits


def load_backend(config: EngineConfig, model: OpenModel, limits: BackendLimits) -> Backend:
    """Load the weights into the chosen backend, which alone is imported."""
    if config.backend == "reference":
        from octavo.backends import reference

        return reference.load(model.program, model.weights, limits)
    from octavo.backends import native

    return native.load(
        model.program,
        model.weights,
        limits,
        isa=config.isa,
        packed=native.Packed.of(model.checkpoint.local_id) if config.packed_cache else None,
    )


def make_scheduler(config: EngineConfig, model: OpenModel) -> Scheduler:
    """An empty scheduler over an empty pool."""
    bounds = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        max_num_queued_reqs=config.max_num_queued_reqs,
    )
    kv = KvCache(model.program.kv, config.num_blocks, chunk=config.max_num_batched_tokens)
    return Scheduler(bounds, kv)


def _info(
    config: EngineConfig, model: OpenModel, ledger: Ledger, backend: Backend, phases: Phases
) -> EngineInfo:
    return EngineInfo(
        model=config.model,
        served_model_names=config.served_model_name,
        content_id=model.checkpoint.content_id,
        family=model.program.spec.family,
        max_model_len=config.max_model_len,
        vocab_size=model.program.spec.vocab_size,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        backend=config.backend,
        isa=getattr(backend, "isa", None),
        threads=config.threads,
        ledger=[LedgerEntry(e.owner, e.planned, e.measured) for e in ledger.entries],
        memory_available=ledger.available,
        decisions={
            name: DecisionInfo(item.value, item.by, item.why)
            for name, item in config.decisions.items()
        },
        startup_ms=phases.took_ms,
        pid=os.getpid(),
    )
