"""The small parts that the engine is made of: seeds, compiled rows, the ledger, counters, logs."""

from __future__ import annotations

import io
import logging

import pytest

from octavo.base.errors import ConfigError, RequestError
from octavo.base.sampling_params import SamplingParams
from octavo.memory import plan_memory, process_memory
from octavo.obs import EngineCounters, Histogram, fields, set_up_logging
from octavo.sampling import SeedSource, bad_word_sequences, compile_row

MIB = 2**20


def test_seed_sources() -> None:
    first, again, other = SeedSource(3), SeedSource(3), SeedSource(-3)
    drawn = [first.draw() for _ in range(100)]
    assert drawn == [again.draw() for _ in range(100)]
    assert len({*drawn, *(other.draw() for _ in range(100))}) == 200
    assert all(0 <= seed < 2**64 for seed in drawn)
    free = SeedSource(None)
    assert free.draw() != free.draw()


def test_compiled_rows_hold_plain_numbers() -> None:
    params = SamplingParams(
        temperature=1,
        top_k=-1,
        seed=-1,
        min_tokens=3,
        stop_token_ids=[9, 4],
        logit_bias={7: 2, 5: -100},
        allowed_token_ids=[8, 2, 8],
        bad_words_token_ids=[[1, 2], [3]],
        logprobs=0,
    )
    row = compile_row(params, eos_ids=(4, 2), prompt_len=10)
    assert (row.top_k, row.seed, row.min_len, row.num_logprobs) == (0, 2**64 - 1, 13, 0)
    assert row.stop_ids.tolist() == [2, 4, 9]
    assert row.bias_ids.tolist() == [7, 5]
    assert row.bias_values.tolist() == [2.0, -100.0]
    assert row.allowed_ids is not None
    assert row.allowed_ids.tolist() == [2, 8]
    assert [ids.tolist() for ids in row.bad_words] == [[1, 2], [3]]
    plain = compile_row(SamplingParams(), eos_ids=(), prompt_len=10)
    assert (plain.min_len, plain.num_logprobs, plain.allowed_ids) == (0, -1, None)


def test_bad_words_take_the_variant_with_a_space_where_it_is_another_first_token() -> None:
    table = {"cat": [1], " cat": [2], "dog": [3, 4], " dog": [5], "a": [6], " a": [6]}
    assert bad_word_sequences(["cat", " dog", "a"], table.__getitem__) == [[1], [2], [3, 4], [6]]
    with pytest.raises(RequestError, match="bad_words"):
        bad_word_sequences(["  "], table.__getitem__)


def test_a_plan_that_fits_is_a_ledger() -> None:
    planned = {"weights": 100 * MIB, "kv_pool": 50 * MIB}
    ledger = plan_memory(planned, available=200 * MIB, block_bytes=MIB, least_blocks=4)
    assert ledger.planned == 150 * MIB
    measured = ledger.with_measured({"weights": 101 * MIB, "extra": 5})
    assert [(e.owner, e.measured) for e in measured.entries] == [
        ("weights", 101 * MIB),
        ("kv_pool", None),
        ("extra", 5),
    ]
    assert "weights" in measured.table()


@pytest.mark.parametrize(
    ("available", "remedy"),
    [
        (120, rf"--kv-cache-memory-bytes {20 * MIB} fits"),
        (102, rf"lower --max-model-len with --kv-cache-memory-bytes {2 * MIB}"),
        (90, "free 60 MiB"),
    ],
)
def test_an_impossible_plan_names_the_cheapest_remedy(available: int, remedy: str) -> None:
    planned = {"weights": 100 * MIB, "kv_pool": 50 * MIB}
    with pytest.raises(ConfigError, match=remedy) as caught:
        plan_memory(planned, available=available * MIB, block_bytes=MIB, least_blocks=4)
    assert "weights" in str(caught.value)


def test_process_memory_counts_what_is_touched() -> None:
    before = process_memory()["private"]
    block = bytearray(b"x" * (32 * MIB))
    assert process_memory()["private"] - before > 24 * MIB
    assert len(block) == 32 * MIB


def test_histograms_count_by_upper_bound() -> None:
    histogram = Histogram.of((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum, histogram.count) == ([2, 1, 1], 6.0, 4)
    one, two = EngineCounters(), EngineCounters()
    one.finished["stop"] += 1
    one.ttft_s.observe(1.0)
    assert two.finished["stop"] == two.ttft_s.count == 0


def test_log_lines_are_short_and_levels_are_checked() -> None:
    stream = io.StringIO()
    octavo = logging.getLogger("octavo")
    saved = (octavo.handlers[:], octavo.level, octavo.propagate)
    try:
        set_up_logging("info", process="engine", stream=stream)
        logging.getLogger("octavo.x").info("ready %s", fields(took_ms=1.23456, model=None, n=3))
        logging.getLogger("octavo.x").debug("unseen")
        with pytest.raises(ConfigError, match="log-level"):
            set_up_logging("loud")
    finally:
        octavo.handlers[:], octavo.propagate = saved[0], saved[2]
        octavo.setLevel(saved[1])
    line = stream.getvalue()
    assert line.endswith(" I engine: ready took_ms=1.235 n=3\n")
    assert line.count("\n") == 1
