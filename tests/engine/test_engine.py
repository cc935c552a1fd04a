"""The whole way, client to backend and back, over tiny random models on the reference backend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.base.errors import (
    ConfigError,
    EngineError,
    RequestError,
)
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.client import LLM, AsyncLLM
from tests.support.engines import (
    args_for,
    collect,
    ids,
    open_llm,
    some_params,
    some_prompts,
    with_engine,
)

DELTA = RequestOutputKind.DELTA
FINAL = RequestOutputKind.FINAL_ONLY

# what does not change the tokens


@pytest.fixture(scope="module", params=["llama", "gemma"])
def alone(
    request: pytest.FixtureRequest, tiny_llama: Path, tiny_gemma: Path
) -> tuple[Path, list[list[int]]]:
    """A model and the tokens of ten requests, each run alone."""
    model = tiny_llama if request.param == "llama" else tiny_gemma
    with open_llm(model) as llm:
        pairs = zip(some_prompts(10), some_params(10), strict=True)
        return model, [ids(llm.generate([prompt], params))[0] for prompt, params in pairs]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="batch"),
        pytest.param({"async_scheduling": False}, id="depth-0"),
        pytest.param({"max_num_batched_tokens": 8}, id="chunked"),
        pytest.param({"max_num_seqs": 2}, id="two-rows"),
        pytest.param({"block_size": 16}, id="block-16"),
    ],
)
def test_requests_alone_equal_requests_in_a_batch(
    alone: tuple[Path, list[list[int]]], changes: dict[str, object]
) -> None:
    model, expected = alone
    with open_llm(model, **changes) as llm:
        assert ids(llm.generate(some_prompts(10), some_params(10))) == expected
        assert llm.stats().kv_blocks_used == 0


def test_preemption_does_not_change_tokens(alone: tuple[Path, list[list[int]]]) -> None:
    model, expected = alone
    with open_llm(model) as llm:
        block_bytes = llm.info.decisions["kv_cache_memory_bytes"].value // llm.info.num_blocks
        groups = 1 if "llama" in str(model) else 6
    with open_llm(model, kv_cache_memory_bytes=block_bytes * 22 * groups) as llm:
        assert ids(llm.generate(some_prompts(10), some_params(10))) == expected
        stats = llm.stats()
        assert stats.counters.preemptions > 0
        assert stats.kv_blocks_used == 0


def test_seeds_of_the_engine_are_reproducible(tiny_llama: Path) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    drawn = []
    for seed in (7, 7, 8, None, None):
        with open_llm(tiny_llama, seed=seed) as llm:
            drawn.append(ids(llm.generate([[5, 6, 7]] * 3, params)))
    assert drawn[0] == drawn[1]
    assert len({str(d) for d in drawn}) == 4
    assert len({str(d) for d in drawn[0]}) == 3  # each request has a seed of its own


def test_a_seed_repeats_and_negative_seeds_work(tiny_llama: Path) -> None:
    with open_llm(tiny_llama) as llm:
        for seed in (5, -5, 2**64 - 1):
            params = SamplingParams(max_tokens=8, ignore_eos=True, seed=seed)
            first, second = ids(llm.generate([[5, 6, 7]] * 2, params))
            assert first == second


# the two faces


def test_llm_takes_vllms_prompt_forms(tiny_llama: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    with open_llm(tiny_llama) as llm:
        text = "Hello world"
        prompt = llm.get_tokenizer().encode(text)
        wanted = ids(llm.generate(text, params))
        forms: list[Any] = [
            prompt,
            [prompt],
            [text],
            {"prompt": text},
            {"prompt_token_ids": prompt},
            [{"prompt_token_ids": prompt, "prompt": text}],
        ]
        for form in forms:
            outputs = llm.generate(form, params, use_tqdm=False)
            assert ids(outputs) == wanted
            assert outputs[0].prompt_token_ids == prompt
            assert outputs[0].finished
        mixed: list[Any] = [text, prompt]
        two = llm.generate(mixed, [params, params.replace(max_tokens=2)])
        assert [len(o.outputs[0].token_ids) for o in two] == [4, 2]
        assert llm.generate([], params) == []
        chat = llm.chat([{"role": "user", "content": "Hello"}], params)
        assert chat[0].prompt is not None
        assert chat[0].prompt.startswith("<|im_start|>user")
        assert len(llm.chat([[{"role": "user", "content": "a"}]] * 2, params)) == 2


def test_llm_refuses_before_anything_is_computed(tiny_llama: Path) -> None:
    with open_llm(tiny_llama) as llm:
        cases: list[tuple[Any, Any]] = [
            ([[1], [10**6]], None),
            ([""], None),
            ([[1] * 200], None),
            ([[1]], [SamplingParams(), SamplingParams()]),
            ([{"text": "x"}], None),
        ]
        for wrong, params in cases:
            with pytest.raises(RequestError):
                llm.generate(wrong, params)
        assert llm.stats().counters.accepted == 0
        assert (
            len(llm.generate([[1] * 100], SamplingParams(max_tokens=500))[0].outputs[0].token_ids)
            <= 28
        )
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny_llama), max_model_length=5)
    with pytest.raises(EngineError):
        llm.generate([[1]])


def test_async_streams_equal_the_final_text(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        final = await collect(llm, "Hello", params.replace(output_kind=FINAL), "a")
        deltas = await collect(llm, "Hello", params.replace(output_kind=DELTA), "a")
        assert len(final) == 1
        assert "".join(o.outputs[0].text for o in deltas) == final[0].outputs[0].text
        assert [t for o in deltas for t in o.outputs[0].token_ids] == final[0].outputs[0].token_ids
        assert final[0].metrics is not None
        assert final[0].metrics.first_token_s is not None
        assert final[0].metrics.first_scheduled_s is not None

    with_engine(args_for(tiny_llama), use)


def test_stop_strings_stop_the_engine_in_the_same_step(tiny_llama: Path) -> None:
    async def use(llm: AsyncLLM) -> None:
        letters = llm.input.encode("abcdefghijklmnopqrstuvwxyz the and Hello")
        params = SamplingParams(
            seed=1, max_tokens=40, ignore_eos=True, allowed_token_ids=sorted(set(letters))
        )
        free = (await collect(llm, "Hello", params, "a"))[-1].outputs[0]
        tokens = free.token_ids
        text = llm.input.tokenizer.decode(tokens, at_start=False)
        stop = text[10:13]
        before = (await llm.stats()).counters.generated_tokens
        cut = (await collect(llm, "Hello", params.replace(stop=["\x00never", stop]), "b"))[-1]
        assert cut.outputs[0].text == text[: text.index(stop)]
        assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
        made = (await llm.stats()).counters.generated_tokens - before
        assert made == len(cut.outputs[0].token_ids) < 40
        assert stop in llm.input.tokenizer.decode(tokens[:made], at_start=False)
        assert stop not in llm.input.tokenizer.decode(tokens[: made - 1], at_start=False)

    with_engine(args_for(tiny_llama), use)


def test_eos_and_stop_ids_and_logprobs(tiny_llama: Path) -> None:
    with open_llm(tiny_llama) as llm:
        free = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=3)
        output = llm.generate([[5, 6, 7]], free)[0].outputs[0]
        assert output.finish_reason == "length"
        assert output.logprobs is not None
        for token, row in zip(output.token_ids, output.logprobs, strict=True):
            assert row[token].rank == 1
            assert len(row) == 3
        third = output.token_ids[2]
        first = output.token_ids.index(third)
        stopped = llm.generate([[5, 6, 7]], free.replace(stop_token_ids=[third]))[0].outputs[0]
        assert stopped.token_ids == output.token_ids[: first + 1]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", third)
        forced = SamplingParams(temperature=0, allowed_token_ids=[2], max_tokens=10)
        ended = llm.generate([[5, 6, 7]], forced)[0].outputs[0]
        assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == ([2], "stop", None)
        bias = SamplingParams(temperature=0, logit_bias={2: 100.0}, min_tokens=3, max_tokens=9)
        later = llm.generate([[5, 6, 7]], bias)[0].outputs[0]
        assert len(later.token_ids) == 4
        assert later.token_ids[-1] == 2


def test_what_is_no_prompt_is_refused(tiny_llama: Path) -> None:
    with open_llm(tiny_llama) as llm:
        for wrong in (None, 5, 1.5):
            with pytest.raises(RequestError, match="prompts"):
                llm.generate(wrong)  # type: ignore[arg-type]


def test_a_forked_child_is_told_to_make_its_own(tiny_llama: Path) -> None:
    with open_llm(tiny_llama) as llm:
        llm._pid += 1  # as a child of fork sees it; a real fork would copy the threads' locks
        with pytest.raises(EngineError, match="fork"):
            llm.generate([[5, 6]], SamplingParams(max_tokens=2))
        llm._pid -= 1
        assert llm.generate([[5, 6]], SamplingParams(max_tokens=2))


def test_async_llm_takes_a_model_or_options(tiny_llama: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="AsyncLLM"):
            await AsyncLLM.start(5)  # type: ignore[arg-type]
        llm = await AsyncLLM.start(str(tiny_llama), in_process=True)
        await llm.wait_ready()
        await llm.close()

    asyncio.run(main())
