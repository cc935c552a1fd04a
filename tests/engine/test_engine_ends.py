"""Every way a request can end: done, aborted, refused, failed, drained. One ending each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.base.errors import (
    CapacityError,
    EngineError,
    EngineStartError,
    QueueFullError,
    RequestError,
)
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.base.step import Finish
from octavo.client import AsyncLLM
from octavo.client.inputs import prompt_bytes
from octavo.engine.build import build_engine
from octavo.engine.messages import AddRequest, FromEngine, Outputs, Shutdown, ToEngine
from octavo.engine.verify import verify_rows
from octavo.kv import KvCache
from octavo.program import KvGroup, KvLayout
from octavo.runner import Rows, Runner
from octavo.sched import Request, Scheduler, SchedulerConfig
from tests.support.engines import (
    args_for,
    collect,
    open_llm,
    some_params,
    some_prompts,
    with_engine,
)
from tests.support.paged_fake import PagedFake

DELTA = RequestOutputKind.DELTA


def test_an_abort_frees_the_blocks_at_once(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        endless = SamplingParams(max_tokens=100, ignore_eos=True, output_kind=DELTA)
        stream = llm.generate("Hello", endless, "a")
        await anext(stream)
        assert (await llm.stats()).running == 1
        await stream.aclose()
        for _ in range(2):  # a fence holds the blocks until the launched step has retired
            stats = await llm.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        await asyncio.sleep(0.05)
        stats = await llm.stats()
        assert stats.kv_blocks_used == 0
        assert stats.counters.finished["abort"] == 1
        assert stats.counters.wasted_tokens == stats.counters.generated_tokens

        stream = llm.generate("Hello", endless, "b")
        await anext(stream)
        await llm.abort("b")
        rest = [output async for output in stream]
        assert rest[-1].finished
        assert rest[-1].outputs[0].finish_reason == "abort"
        await llm.abort("unknown")

    with_engine(args_for(tiny_llama), use)


def test_a_hundred_streams_finish_and_leave_nothing(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        prompts, params = some_prompts(100, seed=3, longest=20), some_params(100, tokens=12)
        results = await asyncio.gather(
            *(
                collect(llm, prompt, p.replace(output_kind=DELTA), f"r{i}")
                for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))
            )
        )
        for outputs in results:
            assert [o.finished for o in outputs].count(True) == 1
            assert outputs[-1].finished
            assert sum(len(o.outputs[0].token_ids) for o in outputs) == 12
        stats = await llm.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
        counters = stats.counters
        assert counters.accepted == counters.finished["length"] == 100
        assert counters.ttft_s.count == counters.e2e_s.count == counters.queue_s.count == 100
        assert counters.itl_s.count == 100 * 11
        assert counters.generated_tokens == 1200

    with_engine(args_for(tiny_llama), use)


def test_what_can_never_fit_is_refused_with_the_numbers(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        with pytest.raises(CapacityError, match=r"26 KV blocks and the pool has 8"):
            await collect(llm, [5] * 100, SamplingParams(max_tokens=4), "a")
        output = await collect(llm, [5] * 10, SamplingParams(max_tokens=4, ignore_eos=True), "b")
        assert output[-1].finished

    with open_llm(tiny_llama) as llm:
        block_bytes = llm.info.decisions["kv_cache_memory_bytes"].value // llm.info.num_blocks
    with_engine(args_for(tiny_llama, kv_cache_memory_bytes=block_bytes * 8), use)


def test_a_full_queue_refuses(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        calls = [collect(llm, [5, 6], params, f"r{i}") for i in range(12)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [r for r in results if isinstance(r, QueueFullError)]
        finished = [r for r in results if isinstance(r, list) and r[-1].finished]
        assert refused
        assert len(refused) + len(finished) == 12

    with_engine(args_for(tiny_llama, max_num_queued_reqs=2, max_num_seqs=1), use)


def test_a_request_id_may_be_reused_but_not_shared(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=50, ignore_eos=True, output_kind=DELTA)
        stream = llm.generate("Hello", params, "same")
        await anext(stream)
        with pytest.raises(RequestError, match="in use"):
            await collect(llm, "Hello", params, "same")
        await stream.aclose()
        outputs = await collect(llm, "Hello", params, "same")
        assert outputs[-1].outputs[0].finish_reason == "length"

    with_engine(args_for(tiny_llama), use)


def test_a_slow_reader_still_gets_the_end(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=20, ignore_eos=True, seed=1, output_kind=DELTA)
        outputs = []
        async for output in llm.generate("Hello", params, "a"):
            outputs.append(output)
            while len(outputs) == 1 and (await llm.stats()).running:
                await asyncio.sleep(0.01)  # the rest is made while this reader does not look
        assert len(outputs) == 2
        assert outputs[-1].finished
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == 20

    with_engine(args_for(tiny_llama), use)


def test_drain_lets_streams_finish_and_cuts_the_rest(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        short = SamplingParams(max_tokens=3, ignore_eos=True)
        running = asyncio.create_task(collect(llm, "Hello", short, "a"))
        await asyncio.sleep(0)
        assert await llm.drain(30.0) == 0
        assert (await running)[-1].outputs[0].finish_reason == "length"
        assert llm.state == "draining"
        with pytest.raises(EngineError, match="draining"):
            await collect(llm, "Hello", short, "b")

    async def cut(llm: AsyncLLM) -> None:
        endless = SamplingParams(max_tokens=120, ignore_eos=True)
        running = asyncio.create_task(collect(llm, "Hello", endless, "a"))
        await asyncio.sleep(0)
        assert await llm.drain(0.0) == 1
        assert (await running)[-1].outputs[0].finish_reason == "abort"

    with_engine(args_for(tiny_llama), use)
    with_engine(args_for(tiny_llama), cut)


def test_a_start_that_fails_says_why(tiny_llama: Path, tmp_path: Path) -> None:
    lying = tmp_path / "lying.gguf"
    lying.write_bytes(tiny_llama.read_bytes()[:2000])

    async def main() -> None:
        for args, text in (
            (args_for(lying), "lying.gguf"),
            (args_for(tmp_path / "missing.gguf"), "missing.gguf"),
            (args_for(tiny_llama, kv_cache_memory_bytes=1), "kv-cache-memory-bytes"),
        ):
            llm = await AsyncLLM.start(args, in_process=True)
            with pytest.raises(EngineStartError, match=text):
                await llm.wait_ready()
            assert llm.state == "dead"
            assert llm.dead_cause is not None
            with pytest.raises(EngineError):
                await collect(llm, "x", SamplingParams(), "a")
            await llm.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def breakable(monkeypatch: pytest.MonkeyPatch) -> PagedFake:
    """A backend that every engine of the test gets: token 66 breaks forward, 13 gives no logits."""
    backend = PagedFake(
        vocab=288,
        num_blocks=512,
        fail_on=frozenset({66}),
        nan_on=frozenset({13}),
    )
    monkeypatch.setattr("octavo.engine.build.load_backend", lambda *_: backend)
    return backend


def test_a_fault_ends_that_request_and_no_other(breakable: PagedFake, tiny_llama: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    free = greedy.replace(max_tokens=40, allowed_token_ids=[5])  # never draws 66 or 13

    async def use(llm: AsyncLLM) -> None:
        long = asyncio.create_task(collect(llm, [9, 9, 9], free, "long"))
        await asyncio.sleep(0)
        for i, (bad, text) in enumerate((([1, 66], "breaks the kernel"), ([1, 13], "finite"))):
            ended = (await collect(llm, bad, greedy, f"bad{i}"))[-1].outputs[0]
            assert (ended.finish_reason, ended.token_ids) == ("error", [])
            assert text in str(ended.stop_reason)
        output = (await long)[-1].outputs[0]
        assert (output.finish_reason, len(output.token_ids)) == ("length", 40)
        for _ in range(3):  # alone in its step
            ended = (await collect(llm, [66], greedy, "alone"))[-1].outputs[0]
            assert ended.finish_reason == "error"
            assert "breaks the kernel" in str(ended.stop_reason)
            again = await collect(llm, [9, 9, 9], free, "good")
            assert len(again[-1].outputs[0].token_ids) == 40
        stats = await llm.stats()
        assert stats.kv_blocks_used == 0
        assert stats.counters.finished["error"] == 5
        assert stats.counters.failed_steps == 0

    with_engine(args_for(tiny_llama), use)
    assert breakable.closed


class ScriptedEnd:
    """An engine's end whose inbox is a script: one batch of messages each time the loop idles."""

    def __init__(self, *batches: list[ToEngine]) -> None:
        self._batches = list(batches)
        self.sent: list[FromEngine] = []

    def receive(self, wait: bool) -> list[ToEngine]:
        return self._batches.pop(0) if wait else []

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass

    def endings(self) -> dict[str, str]:
        """Request id → what ended it."""
        deltas = [d for m in self.sent if isinstance(m, Outputs) for d in m.deltas if d.terminal]
        assert len({d.request_id for d in deltas}) == len(deltas), "one terminal delta each"
        return {d.request_id: d.fault or Finish(d.finish).name for d in deltas}


def added(name: str, prompt: list[int], **params: Any) -> AddRequest:
    settled = SamplingParams(temperature=0, **{"max_tokens": 4, **params})
    return AddRequest(name, prompt_bytes(prompt), settled, (), 0.0)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_step_that_fails_as_a_whole_ends_its_rows_only(
    breakable: PagedFake, tiny_llama: Path, ahead: bool
) -> None:
    rounds: list[list[ToEngine]] = [
        [added(f"a{i}", [1, 66]), added(f"b{i}", [2, 66])] for i in range(6)
    ]
    good: list[ToEngine] = [added("good", [1], allowed_token_ids=[5])]
    end = ScriptedEnd(*rounds[:3], good, *rounds[3:], [Shutdown()])
    core = build_engine(args_for(tiny_llama, async_scheduling=ahead), tiny_llama, end, check=True)
    core.run()
    core.close()
    endings = end.endings()
    assert endings.pop("good") == "LENGTH"
    assert len(endings) == 12
    assert all("breaks the kernel" in cause for cause in endings.values())
    assert core.counters.failed_steps == 6


@pytest.mark.parametrize("ahead", [True, False])
def test_a_backend_that_only_fails_ends_the_engine(
    breakable: PagedFake, tiny_llama: Path, ahead: bool
) -> None:
    rounds: list[list[ToEngine]] = [
        [added(f"a{i}", [1, 66]), added(f"b{i}", [2, 66])] for i in range(4)
    ]
    core = build_engine(
        args_for(tiny_llama, async_scheduling=ahead), tiny_llama, ScriptedEnd(*rounds)
    )
    with pytest.raises(EngineError, match="breaks the kernel"):
        core.run()
    core.close()
    assert breakable.closed


def test_rows_that_differ_from_the_schedulers_picture_are_found() -> None:
    layout = KvLayout((KvGroup(None, (0,)),), block_size=4, kv_heads=1, head_dim=2)
    scheduler = Scheduler(SchedulerConfig(2, 16, 32), KvCache(layout, 16, chunk=16))
    rows = Rows(2, 32, 1, 4)
    runner = Runner(PagedFake(block_size=4, num_blocks=16, max_rows=2), rows, tile=16)
    params = SamplingParams(temperature=0, max_tokens=20)
    scheduler.add(Request("a", np.array([5, 6, 7], np.int32), params, ()))
    for _ in range(6):
        plan = scheduler.plan()
        assert plan is not None
        scheduler.apply(runner.run(plan))
        verify_rows(scheduler, rows)
    row = scheduler.running[0].row
    for array, place in (
        (rows.tokens, (row, 4)),
        (rows.num_computed, (row,)),
        (rows.block_tables, (0, row, 1)),
    ):
        array[place] += 1
        with pytest.raises(AssertionError, match=r"request a, row \d"):
            verify_rows(scheduler, rows)
        array[place] -= 1
    verify_rows(scheduler, rows)
