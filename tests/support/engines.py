"""Small engines for tests: options, prompts, parameters, and how to run one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from octavo.base.outputs import RequestOutput
from octavo.base.sampling_params import SamplingParams
from octavo.client import LLM, AsyncLLM
from octavo.config import EngineArgs


def args_for(model: Path, **changes: object) -> EngineArgs:
    small = EngineArgs(
        model=str(model),
        backend="reference",
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        block_size=4,
        threads=1,
    )
    return replace(small, **changes)  # type: ignore[arg-type]


def options(model: Path, **changes: object) -> dict[str, object]:
    args = args_for(model, **changes)
    return {
        name: getattr(args, name)
        for name in (
            "model",
            "backend",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "threads",
            "kv_cache_memory_bytes",
            "async_scheduling",
            "seed",
            "max_num_queued_reqs",
            "isa",
            "kv_cache_dtype",
        )
    }


def open_llm(model: Path, **changes: object) -> LLM:
    return LLM(check=True, **options(model, **changes))  # type: ignore[arg-type]


def with_engine(
    args: EngineArgs, use: Callable[[AsyncLLM], Awaitable[None]], *, in_process: bool = True
) -> None:
    async def main() -> None:
        llm = await AsyncLLM.start(args, in_process=in_process, check=in_process)
        try:
            await llm.wait_ready()
            await use(llm)
        finally:
            await llm.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def some_prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 280) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def some_params(count: int, tokens: int = 20) -> list[SamplingParams]:
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.2, "min_p": 0.02, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    ]
    return [
        SamplingParams(seed=1000 + i, max_tokens=tokens, ignore_eos=True, **kinds[i % len(kinds)])  # type: ignore[arg-type]
        for i in range(count)
    ]


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


async def collect(
    llm: AsyncLLM, prompt: str | list[int], params: SamplingParams, name: str
) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params, name)]
