"""`octavo bench ops`: where a step's time goes, stage by stage, driving the backend directly.

Steps of several shapes (rows × context) are replayed on a real model with the native backend's
stage clock on. No scheduler, no Python between the stages: what is left is kernels, barriers and
memory.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import msgspec
import numpy as np

from octavo.backends import native
from octavo.backends.api import BackendLimits, ForwardBatch, RowSampling, SampleBatch
from octavo.base.environment import read_environment
from octavo.config import EngineArgs, probe_machine, with_environment
from octavo.engine.model import OpenModel, open_model
from octavo.program.ops import Linear
from octavo.weights import Progress, resolve_model


@dataclass(frozen=True)
class StepShape:
    """rows sequences that each compute `tokens` tokens behind `context` cached ones."""

    rows: int
    tokens: int
    context: int

    def __str__(self) -> str:
        return f"{self.rows} × {self.tokens} @ {self.context}"


SHAPES = (
    StepShape(1, 1, 192),
    StepShape(8, 1, 192),
    StepShape(32, 1, 192),
    StepShape(64, 1, 192),
    StepShape(1, 1, 4000),
    StepShape(1, 512, 0),
    StepShape(1, 512, 3500),
)


@dataclass(frozen=True)
class StepTimes:
    """Medians in seconds. forward_s and sample_s are whole calls; stages: by label.

    linear_ops: of the step's matrices, two per multiply-add.
    """

    shape: StepShape
    forward_s: float
    sample_s: float
    stages: dict[str, float]
    linear_ops: int

    @property
    def total_s(self) -> float:
        return self.forward_s + self.sample_s


def limits_for(model: OpenModel, threads: int) -> BackendLimits:
    """Room for the largest shape."""
    size, groups = model.program.kv.block_size, len(model.program.kv.groups)
    blocks = max(s.rows * -(-(s.context + s.tokens) // size) for s in SHAPES)
    return BackendLimits(
        max_rows=max(s.rows for s in SHAPES),
        max_len=max(s.context + s.tokens for s in SHAPES),
        num_blocks=groups * blocks,
        tile=512,
        sample_rows=32,
        threads=threads,
    )


def measure(
    backend: native.NativeBackend, model: OpenModel, shape: StepShape, repeats: int
) -> StepTimes:
    """Replay one shape's step `repeats` times after one warm-up."""
    kv, rng = model.program.kv, np.random.default_rng(0)
    limits = limits_for(model, 1)
    vocab, end = model.program.spec.vocab_size, shape.context + shape.tokens
    per_row = -(-end // kv.block_size)
    tables = np.zeros(
        (len(kv.groups), limits.max_rows, -(-limits.max_len // kv.block_size)), np.int32
    )
    order = rng.permutation(len(kv.groups) * shape.rows * per_row).astype(np.int32)
    tables[:, : shape.rows, :per_row] = order.reshape(len(kv.groups), shape.rows, per_row)
    rows = np.arange(shape.rows, dtype=np.int32)
    history = np.zeros((limits.max_rows, limits.max_len + 1), np.int32)
    lens = np.full(limits.max_rows, end, np.int32)
    for row in rows:
        backend.set_row(int(row), RowSampling())

    def forward(first: int, count: int) -> None:
        tokens = rng.integers(0, vocab, shape.rows * count).astype(np.int32)
        starts = np.arange(0, shape.rows + 1, dtype=np.int32) * count
        backend.forward(
            ForwardBatch(
                tokens=tokens,
                positions=np.tile(np.arange(first, first + count, dtype=np.int32), shape.rows),
                seq_start=starts.astype(np.int32),
                seq_row=rows,
                seq_len=np.full(shape.rows, first + count, np.int32),
                block_tables=tables,
                gather_token=(starts[1:] - 1).astype(np.int32),
                gather_row=rows,
            )
        )

    # What the context's tokens are does not matter; that their keys are in memory does.
    for first in range(0, shape.context, 512 // shape.rows):
        forward(first, min(512 // shape.rows, shape.context - first))
    forward_s, sample_s = [], []
    stages: dict[str, list[float]] = {}
    backend.stage_times()
    for repeat in range(repeats + 1):
        begun = time.perf_counter()
        forward(shape.context, shape.tokens)
        between = time.perf_counter()
        backend.sample(SampleBatch(rows, history, lens))
        ended = time.perf_counter()
        found = backend.stage_times()
        if repeat > 0:
            forward_s.append(between - begun)
            sample_s.append(ended - between)
            for label, seconds in found.items():
                stages.setdefault(label, []).append(seconds)
    medians = {label: median(values) for label, values in stages.items()}
    return StepTimes(shape, median(forward_s), median(sample_s), medians, linear_ops(model, shape))


def linear_ops(model: OpenModel, shape: StepShape) -> int:
    """Operations of a step's matrices: every token through the layers, every row to logits."""
    program, tokens = model.program, shape.rows * shape.tokens
    layers = sum(op.n_in * op.n_out for op in program.forward if isinstance(op, Linear))
    head = sum(op.n_in * op.n_out for op in program.sample if isinstance(op, Linear))
    return 2 * (layers * tokens + head * shape.rows)


def bench_ops(args: EngineArgs, num_iters: int, progress: Progress) -> int:
    """Measure and print a table per shape; the last line is JSON."""
    args = with_environment(args, read_environment())
    machine = probe_machine()
    threads = args.threads or machine.cores
    model = open_model(resolve_model(args.model, progress=progress), block_size=args.block_size)
    backend = native.load(model.program, model.weights, limits_for(model, threads), isa=args.isa)
    try:
        weight_bytes = backend.memory()["weights"]
        ceilings = native.measure_ceilings(threads, weight_bytes)
        steps = [measure(backend, model, shape, num_iters) for shape in SHAPES]
    finally:
        backend.close()
    print(
        f"{threads} threads, {backend.isa}: memory {ceilings.read_bytes_per_s / 1e9:.1f} GB/s over "
        f"{weight_bytes / 1e6:.0f} MB, int8 {ceilings.int8_ops_per_s / 1e12:.2f} TOPS"
    )
    for step in steps:
        print("\n" + "\n".join(table(step, weight_bytes, ceilings)))
    report: dict[str, Any] = {
        "benchmark": "ops",
        "model": args.model,
        "engine": {"isa": backend.isa, "threads": threads},
        "machine": asdict(machine),
        "ceilings": asdict(ceilings),
        "weight_bytes": weight_bytes,
        "steps": [asdict(step) for step in steps],
    }
    print(msgspec.json.encode(report).decode())
    return 0


def table(step: StepTimes, weight_bytes: int, ceilings: native.Ceilings) -> list[str]:
    """Lines for one shape: the two calls, then the stages, the longest first."""
    shape, total = step.shape, step.total_s
    rate = shape.rows * shape.tokens / total
    read_share = weight_bytes / total / ceilings.read_bytes_per_s
    matrix_share = step.linear_ops / total / ceilings.int8_ops_per_s
    lines = [
        f"{shape}: forward {1e3 * step.forward_s:.2f} ms, sample {1e3 * step.sample_s:.2f} ms, "
        f"{rate:.0f} tokens/s, {100 * read_share:.0f} % of the memory's rate, "
        f"{100 * matrix_share:.0f} % of the int8 rate"
    ]
    for label, seconds in sorted(step.stages.items(), key=lambda item: -item[1]):
        lines.append(f"  {1e3 * seconds:8.3f} ms  {100 * seconds / total:5.1f} %  {label}")
    return lines
