"""`octavo bench loop`: what Python costs per step, with a device that takes no time.

The real loop, scheduler, runner and message codec run over a backend that does nothing and a
channel that encodes and drops. What remains is planning, preparing, applying and encoding: the work
that a step's compute has to cover.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import msgspec
import numpy as np

from octavo.backends.api import Float32, ForwardBatch, Int32, RowSampling, SampleBatch, SampleOutput
from octavo.base.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.engine.messages import (
    AddRequest,
    Codec,
    EngineInfo,
    FromEngine,
    Outputs,
    Shutdown,
    ToEngine,
)
from octavo.kv import KvCache
from octavo.program.program import KvGroup, KvLayout
from octavo.runner import Rows, Runner
from octavo.sched import Scheduler
from octavo.sched.scheduler import SchedulerConfig

ROWS = (1, 8, 32, 64)
PROMPT = 16


class NoDevice:
    """A backend that computes nothing and draws token 1."""

    name = "none"

    def set_row(self, row: int, sampling: RowSampling) -> None: ...

    def forward(self, batch: ForwardBatch) -> None: ...

    def sample(self, batch: SampleBatch) -> SampleOutput:
        return SampleOutput(np.ones(len(batch.rows), np.int32))

    def logits(self, rows: Int32) -> Float32:
        return np.zeros((len(rows), 2), np.float32)

    def memory(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None: ...


class Sink:
    """A channel that hands in the requests, encodes what comes out, and notes when."""

    def __init__(self, requests: list[ToEngine]) -> None:
        self._inbox = requests
        self._codec = Codec(ToEngine)
        self.at: list[tuple[float, int]] = []  # the process's CPU time, and how many tokens

    def receive(self, wait: bool) -> list[ToEngine]:
        messages, self._inbox = self._inbox, []
        return messages or ([Shutdown()] if wait else [])

    def send(self, message: FromEngine) -> None:
        self._codec.encode(message)
        if isinstance(message, Outputs):
            self.at.append((time.process_time(), len(message.deltas)))

    def close(self) -> None: ...


_INFO = EngineInfo(
    model="none",
    served_model_names=("none",),
    content_id="",
    family="none",
    max_model_len=0,
    vocab_size=2,
    block_size=16,
    num_blocks=0,
    max_num_seqs=0,
    max_num_batched_tokens=0,
    backend="none",
    isa=None,
    threads=0,
    ledger=[],
    memory_available=0,
    decisions={},
    startup_ms={},
    pid=0,
)


def step_us(rows: int, steps: int) -> float:
    """Microseconds of CPU time, all threads, per step with `rows` rows decoding.

    CPU time and not the clock's: handing a step from thread to thread waits, and a device that
    computes would fill that wait.
    """
    layout = KvLayout((KvGroup(None, (0,)),), 16, 1, 2)
    length = PROMPT + steps + 1
    blocks = -(-length // layout.block_size) + 1
    bounds = SchedulerConfig(
        max_num_seqs=rows, max_num_batched_tokens=rows * PROMPT, max_model_len=length + 1
    )
    params = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)
    prompt = np.ones(PROMPT, np.int32).tobytes()
    sink = Sink(
        [
            AddRequest(
                request_id=f"request-{i}", prompt=prompt, params=params, eos_ids=(), arrival_s=0.0
            )
            for i in range(rows)
        ]
    )
    core = EngineCore(
        scheduler=Scheduler(bounds, KvCache(layout, rows * blocks, chunk=rows * PROMPT)),
        runner=Runner(NoDevice(), Rows(rows, length + 1, 1, layout.block_size), tile=rows * PROMPT),
        end=sink,
        info=_INFO,
        depth=1,
        seed=0,
    )
    try:
        core.run()
    finally:
        core.close()
    whole = [at for at, count in sink.at if count == rows]
    return (whole[-1] - whole[2]) / (len(whole) - 3) * 1e6


def bench_loop(num_iters: int) -> int:
    """Measure and print; the last line is JSON."""
    results: dict[str, Any] = {}
    for rows in ROWS:
        values = sorted(step_us(rows, 300) for _ in range(num_iters))
        low, middle, high = values[0], median(values), values[-1]
        print(f"{rows:3d} rows {middle:8.0f} µs of CPU per step   (min {low:.0f}, max {high:.0f})")
        results[str(rows)] = {"min": low, "median": middle, "max": high}
    print(msgspec.json.encode({"benchmark": "loop", "step_cpu_us": results}).decode())
    return 0
