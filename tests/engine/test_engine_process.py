"""The engine in a process of its own: the same answers, and every way to die has an ending."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.base.errors import EngineDeadError, EngineError, EngineStartError, RequestError
from octavo.base.outputs import RequestOutput
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.client import LLM, AsyncLLM
from octavo.engine.messages import AddRequest, Codec, FromEngine, ToEngine, added_id
from tests.support.engines import (
    args_for,
    collect,
    ids,
    open_llm,
    options,
    some_params,
    some_prompts,
    with_engine,
)

ENDLESS = SamplingParams(
    max_tokens=480, ignore_eos=True, output_kind=RequestOutputKind.DELTA, seed=1
)
ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_process_gives_what_the_thread_gives(tiny_llama: Path) -> None:
    prompts = some_prompts(6)
    params = [p.replace(stop="zzz", logprobs=2) for p in some_params(6, tokens=8)]
    with open_llm(tiny_llama) as llm:
        expected = ids(llm.generate(prompts, params))

    async def use(llm: AsyncLLM) -> None:
        calls = [
            collect(llm, prompt, p, f"r{i}")
            for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))
        ]
        assert [r[-1].outputs[0].token_ids for r in await asyncio.gather(*calls)] == expected
        assert llm.info.pid != os.getpid()
        assert (await llm.stats()).kv_blocks_used == 0

    with_engine(args_for(tiny_llama, max_model_len=512), use, in_process=False)


def test_llm_in_a_process(tiny_llama: Path) -> None:
    with LLM(in_process=False, **options(tiny_llama)) as llm:  # type: ignore[arg-type]
        assert len(llm.generate([[5, 6]], SamplingParams(max_tokens=3))) == 1
        os.kill(llm.info.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            llm.generate([[5, 6]], ENDLESS)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            llm.generate([[5, 6]], ENDLESS)


def test_a_killed_engine_ends_all_requests_with_the_cause(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        streams = [llm.generate("Hello", ENDLESS, f"r{i}") for i in range(3)]
        await anext(streams[0])
        os.kill(llm.info.pid, signal.SIGSTOP)  # so that none of them ends before the engine does
        tasks = [asyncio.create_task(_read(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        os.kill(llm.info.pid, signal.SIGKILL)
        for task in tasks:
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await task
        assert llm.state == "dead"
        assert "SIGKILL" in (llm.dead_cause or "")
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(llm, "Hello", ENDLESS, "later")
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await llm.stats()

    with_engine(args_for(tiny_llama, max_model_len=512), use, in_process=False)


async def _read(stream: AsyncIterator[RequestOutput]) -> None:
    async for _ in stream:
        pass


def test_a_frozen_engine_is_noticed_and_goes_on(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        stream = llm.generate("Hello", ENDLESS, "a")
        await anext(stream)
        os.kill(llm.info.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"silent.*step"):
            await llm.stats(timeout_s=0.3)
        os.kill(llm.info.pid, signal.SIGCONT)
        outputs = [output async for output in stream]
        assert outputs[-1].finished
        await llm.stats()

    with_engine(args_for(tiny_llama, max_model_len=512), use, in_process=False)


def test_signals_for_the_terminal_leave_the_engine_alone(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        os.kill(llm.info.pid, signal.SIGTERM)
        os.kill(llm.info.pid, signal.SIGINT)
        assert os.getpgid(llm.info.pid) != os.getpgid(0)
        outputs = await collect(llm, "Hello", ENDLESS.replace(max_tokens=3), "a")
        assert outputs[-1].finished

    with_engine(args_for(tiny_llama, max_model_len=512), use, in_process=False)


def test_a_start_that_fails_says_why(tiny_llama: Path) -> None:
    async def main() -> None:
        args = args_for(tiny_llama, kv_cache_memory_bytes=1)
        llm = await AsyncLLM.start(args)
        with pytest.raises(EngineStartError, match="kv-cache-memory-bytes"):
            await llm.wait_ready()
        assert llm.state == "dead"
        await llm.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_engine_ends_with_its_parent(tiny_llama: Path) -> None:
    script = f"""
import asyncio, os, signal
from octavo.client import AsyncLLM
from tests.support.engines import args_for

async def main():
    llm = await AsyncLLM.start(args_for({str(tiny_llama)!r}))
    await llm.wait_ready()
    print(llm.info.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_the_sockets_are_private_and_removed(tiny_llama: Path) -> None:
    seen: list[Path] = []

    async def use(llm: AsyncLLM) -> None:
        folder = Path(llm._handle._folder)  # type: ignore[union-attr]
        assert folder.stat().st_mode & 0o777 == 0o700
        seen.append(folder)

    with_engine(args_for(tiny_llama, max_model_len=512), use, in_process=False)
    assert not seen[0].exists()


def test_a_request_that_cannot_be_decoded_is_known_by_its_id() -> None:
    codec = Codec(ToEngine)
    good = AddRequest("x", b"", SamplingParams(), (), 0.0)
    data = codec.encode(good)
    assert codec.decode(data) == good
    bad = data.replace(codec.encode(SamplingParams()), codec.encode({"temperature": -1.0}))
    assert bad != data
    with pytest.raises((RequestError, EngineError)):
        codec.decode(bad)
    assert added_id(bad) == "x"
    assert added_id(b"\xff") is None
    with pytest.raises(EngineError, match="damaged"):
        Codec(FromEngine).decode(b"\x91\xa1x")
