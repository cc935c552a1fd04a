"""`octavo bench`: latency of one stream, throughput of many, in this process.

Prompts are random token ids from a fixed seed, replies ignore EOS, so that every run computes the
same number of tokens. One warm-up run is not counted. Medians with minimum and maximum are given:
a single time on a shared machine says little. One stream is also given as a share of the rate at
which memory can be read, measured in the same process: every token reads all weights once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
import numpy as np

from octavo.backends.native import measure_ceilings
from octavo.base.environment import read_environment
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.client import AsyncLLM
from octavo.config import EngineArgs, probe_machine, with_environment
from octavo.weights import Progress


@dataclass(frozen=True)
class BenchOptions:
    """kind: "latency" (one stream) or "throughput" (`num_prompts` at once)."""

    kind: str
    input_len: int = 128
    output_len: int = 128
    num_prompts: int = 32
    num_iters: int = 5


@dataclass(frozen=True)
class Run:
    """One repetition. Times in seconds; itl_s: gaps between tokens, all requests together."""

    wall_s: float
    ttft_s: list[float]
    itl_s: list[float]


def bench(options: BenchOptions, args: EngineArgs, progress: Progress) -> int:
    """Measure and print; the last line is JSON."""
    report = asyncio.run(_bench(options, with_environment(args, read_environment()), progress))
    for name, value in report["results"].items():
        low, middle, high = value["min"], value["median"], value["max"]
        print(f"{name:<24} {middle:10.3f}   (min {low:.3f}, max {high:.3f})")
    print(msgspec.json.encode(report).decode())
    return 0


async def _bench(options: BenchOptions, args: EngineArgs, progress: Progress) -> dict[str, Any]:
    started = time.monotonic()
    llm = await AsyncLLM.start(args, progress=progress, in_process=True)
    try:
        await llm.wait_ready()
        load_s = time.monotonic() - started
        rng = np.random.default_rng(0)
        streams = 1 if options.kind == "latency" else options.num_prompts
        await _run(llm, options, streams, rng)
        runs = [await _run(llm, options, streams, rng) for _ in range(options.num_iters)]
        info = llm.info
        results = summarise(options, streams, runs)
        ceilings = None
        if info.backend == "native":
            weights = next(entry.planned for entry in info.ledger if entry.owner == "weights")
            ceilings = measure_ceilings(info.threads, weights)
            if streams == 1 and "decode_tok_per_s" in results:
                share = weights / ceilings.read_bytes_per_s
                results["decode_share_of_memory_rate"] = {
                    name: share * value for name, value in results["decode_tok_per_s"].items()
                }
        return {
            "benchmark": options.kind,
            "model": args.model,
            "options": asdict(options),
            "engine": {
                "backend": info.backend,
                "isa": info.isa,
                "threads": info.threads,
                "load_s": round(load_s, 3),
            },
            "machine": asdict(probe_machine()),
            "ceilings": None if ceilings is None else asdict(ceilings),
            "results": results,
        }
    finally:
        await llm.close()


async def _run(llm: AsyncLLM, options: BenchOptions, streams: int, rng: np.random.Generator) -> Run:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=options.output_len,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )
    vocab = llm.info.vocab_size
    prompts = [rng.integers(0, vocab, options.input_len).tolist() for _ in range(streams)]
    started = time.perf_counter()
    timed = await asyncio.gather(
        *(_stream(llm, prompt, params, f"bench-{i}") for i, prompt in enumerate(prompts))
    )
    wall_s = time.perf_counter() - started
    return Run(
        wall_s=wall_s,
        ttft_s=[times[0] - started for times in timed],
        itl_s=[b - a for times in timed for a, b in pairwise(times)],
    )


async def _stream(
    llm: AsyncLLM, prompt: list[int], params: SamplingParams, request_id: str
) -> list[float]:
    """When each token came."""
    times: list[float] = []
    async with contextlib.aclosing(llm.generate(prompt, params, request_id)) as outputs:
        async for output in outputs:
            now = time.perf_counter()
            times += [now] * len(output.outputs[0].token_ids)
    return times


def summarise(options: BenchOptions, streams: int, runs: list[Run]) -> dict[str, dict[str, float]]:
    """min, median and max over the repetitions of each figure."""
    generated = streams * options.output_len
    figures: dict[str, list[float]] = {
        "ttft_ms": [1e3 * median(run.ttft_s) for run in runs],
        "prompt_tok_per_s": [streams * options.input_len / max(run.ttft_s) for run in runs],
        "generated_tok_per_s": [generated / run.wall_s for run in runs],
    }
    if options.output_len > 1:
        figures["itl_ms"] = [1e3 * median(run.itl_s) for run in runs]
        figures["itl_p99_ms"] = [1e3 * percentile(run.itl_s, 99) for run in runs]
        figures["decode_tok_per_s"] = [
            streams * (options.output_len - 1) / (run.wall_s - median(run.ttft_s)) for run in runs
        ]
    return {
        name: {"min": min(values), "median": median(values), "max": max(values)}
        for name, values in figures.items()
    }


def percentile(values: list[float], rank: float) -> float:
    """The value at `rank` percent, nearest-rank."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-len(ordered) * int(rank) // 100) - 1))]
