"""A request gives the same tokens whatever is around it: the native backend, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.base.outputs import RequestOutput
from octavo.base.sampling_params import SamplingParams
from octavo.kv import KvCache
from octavo.program import KvGroup, KvLayout
from tests.engine.test_ops import HERE
from tests.support.engines import open_llm, some_params, some_prompts
from tests.support.tiny_models import tiny_gemma3_gguf, tiny_llama_gguf

COUNT = 14
CHANGES: dict[str, dict[str, object]] = {
    "batch": {},
    "synchronous": {"async_scheduling": False},
    "chunks": {"max_num_batched_tokens": 8},
    "few rows": {"max_num_seqs": 2},
    "big blocks": {"block_size": 16},
    "three threads": {"threads": 3},
}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / f"{request.param}.gguf"
    make = tiny_llama_gguf if request.param == "llama" else tiny_gemma3_gguf
    make(path)
    return path


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module", params=[(isa, "auto") for isa in HERE] + [(HERE[-1], "int8")])
def kernels(request: pytest.FixtureRequest) -> dict[str, object]:
    """Instruction set, and how keys and values are held."""
    isa, kv_cache_dtype = request.param
    return {"backend": "native", "isa": isa, "kv_cache_dtype": kv_cache_dtype}


@pytest.fixture(scope="module")
def alone(model: Path, kernels: dict[str, object]) -> list[list[int]]:
    with open_llm(model, max_num_batched_tokens=64, **kernels) as llm:
        pairs = zip(some_prompts(COUNT), some_params(COUNT), strict=True)
        return [tokens_of(llm.generate([p], s, use_tqdm=False))[0] for p, s in pairs]


@pytest.mark.parametrize("name", CHANGES)
def test_alone_equals_in_company(
    model: Path, kernels: dict[str, object], alone: list[list[int]], name: str
) -> None:
    with open_llm(model, **kernels, **CHANGES[name]) as llm:
        outputs = llm.generate(some_prompts(COUNT), some_params(COUNT), use_tqdm=False)
        assert tokens_of(outputs) == alone


def test_a_preemption_changes_nothing(
    model: Path, kernels: dict[str, object], alone: list[list[int]]
) -> None:
    with open_llm(model, **kernels) as llm:
        entry = next(item for item in llm.info.ledger if item.owner == "kv_pool")
        block_bytes = entry.planned // llm.info.num_blocks
        layout_groups = 1 if llm.info.family == "llama" else 6
    longest = max(len(prompt) for prompt in some_prompts(COUNT)) + 20
    pool = block_bytes * layout_groups * (longest // 4 + 8)
    with open_llm(model, kv_cache_memory_bytes=pool, **kernels) as llm:
        outputs = llm.generate(some_prompts(COUNT), some_params(COUNT), use_tqdm=False)
        assert llm.stats().counters.preemptions > 0
        assert tokens_of(outputs) == alone


def test_greedy_targets_before_and_after_a_batch_that_ends_on_stop_strings(model: Path) -> None:
    """R2"""
    greedy = SamplingParams(temperature=0.0, max_tokens=15)
    targets = some_prompts(4, seed=3)
    with open_llm(model, backend="native") as llm:
        cold = llm.generate(targets, greedy, use_tqdm=False)
        texts = [output.outputs[0].text for output in cold]
        stops = [text[len(text) // 2 :][:2] or "e" for text in texts]
        stopping = [SamplingParams(temperature=0.0, max_tokens=15, stop=stop) for stop in stops]
        llm.generate(targets, stopping, use_tqdm=False)
        assert tokens_of(llm.generate(targets, greedy, use_tqdm=False)) == tokens_of(cold)


def test_the_longest_request_of_a_window_model_is_bounded_by_its_window() -> None:
    full = KvLayout((KvGroup(None, (0,)),), 4, 1, 2)
    window = KvLayout((KvGroup(8, (0,)),), 4, 1, 2)
    assert KvCache(full, 10, 8).longest == 40
    assert KvCache(window, 10, 8).longest > 1000
