"""The comparison with other engines: its arithmetic, schedule, stream reading and tables."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import RequestFailed, events, reply_of
from engines.api import last_lines
from engines.session import worker_reply
from figures import (
    Chunk,
    Limits,
    Reply,
    Request,
    Spread,
    collect,
    percentile,
    times_better,
    traffic_figures,
)
from load import FIRST_ID, Traffic, schedule
from measure import decode_rate, together_rate
from report import Report, Row, to_json, to_markdown, to_svg


def reply(*chunks: tuple[float, int | None], tokens: int, begun_s: float = 0.0) -> Reply:
    return Reply(begun_s, tuple(Chunk(*chunk) for chunk in chunks), tokens, 5)


# Tokens and their gaps ---------------------------------------------------------------------------


def test_itl_counts_tokens_not_chunks() -> None:
    found = reply((1.0, 1), (1.2, 1), (1.8, 3), tokens=5)
    assert found.ttft_s == 1.0
    assert found.gaps() == [pytest.approx((0.2, 1)), pytest.approx((0.2, 3))]
    assert found.itl_s == pytest.approx(0.2)  # 0.8 s for 4 tokens, not for 2 chunks
    assert found.longest_gap_s == pytest.approx(0.6)


def test_tokens_of_the_first_chunk_are_not_later_ones() -> None:
    assert reply((1.0, 3), (1.5, 1), tokens=4).itl_s == pytest.approx(0.5)
    assert decode_rate(reply((1.0, 3), (1.5, 1), tokens=4)) == pytest.approx(2.0)


def test_a_total_is_spread_where_chunks_say_nothing() -> None:
    found = reply((0.0, None), (0.4, None), (0.8, None), tokens=6)
    assert found.per_chunk() == [2.0, 2.0, 2.0]
    assert found.gaps() == [pytest.approx((0.2, 2.0))] * 2


def test_counts_that_do_not_add_up_are_not_believed() -> None:
    assert reply((0.0, 1), (0.4, 1), tokens=4).per_chunk() == [2.0, 2.0]


def test_a_chunk_without_tokens_hands_its_gap_on() -> None:
    found = reply((0.0, 1), (0.3, 0), (0.5, 1), tokens=2)
    assert found.gaps() == [pytest.approx((0.5, 1))]


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 4)), min_size=2, max_size=30))
def test_gaps_add_up_to_the_time_between_first_and_last(parts: list[tuple[float, int]]) -> None:
    at, chunks = 0.0, []
    for gap, count in parts:
        at += gap
        chunks.append((at, count))
    found = reply(*chunks, tokens=sum(count for _, count in parts))
    total = sum(gap_s * tokens for gap_s, tokens in found.gaps())
    assert total == pytest.approx(found.end_s - found.chunks[0].at_s)
    assert sum(tokens for _, tokens in found.gaps()) == found.tokens - parts[0][1]


def test_one_chunk_has_no_gaps() -> None:
    found = reply((2.0, 1), tokens=1)
    assert (found.gaps(), found.itl_s, found.longest_gap_s) == ([], 0.0, 0.0)


def test_streams_together_are_timed_from_first_request_to_last_token() -> None:
    two = [reply((1.0, 4), tokens=4, begun_s=0.5), reply((2.5, 4), tokens=4, begun_s=0.6)]
    assert together_rate(two) == pytest.approx(4.0)


def test_a_worker_must_make_the_tokens_it_was_asked_for() -> None:
    request = Request((1, 2), 2)
    assert worker_reply(request, 0.0, [1.0, 2.0]).itl_s == 1.0
    with pytest.raises(RequestFailed, match="1 tokens instead of 2"):
        worker_reply(request, 0.0, [1.0])


# Reading a stream --------------------------------------------------------------------------------


def sse(*bodies: object) -> bytes:
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)


def test_an_event_comes_when_its_last_byte_does() -> None:
    raw = sse({"a": 1}) + b": a comment\r\n\r\n" + sse({"b": 2}) + b"data: [DONE]\n\n"
    cut = raw.index(b'"b"')
    found = events([(1.0, raw[:cut]), (2.0, raw[cut:])])
    assert found == [(1.0, {"a": 1}), (2.0, {"b": 2})]


def choice(text: str = "x", finish: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"text": text, "finish_reason": finish, **more}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def test_ids_in_a_chunk_are_its_tokens() -> None:
    stream = [choice(token_ids=[5]), choice(token_ids=[6, 7]), choice("", "length"), USAGE]
    found = reply_of(Request((1,), 3), 0.0, [(float(i), e) for i, e in enumerate(stream, 1)])
    assert [(c.at_s, c.tokens) for c in found.chunks] == [(1.0, 1), (2.0, 2)]
    assert (found.tokens, found.prompt_tokens) == (3, 7)


def test_running_totals_become_counts() -> None:
    made = [1, 3, 3]
    stream = [{**choice(), "timings": {"predicted_n": n}} for n in made] + [USAGE]
    found = reply_of(Request((1,), 3), 0.0, [(float(i), e) for i, e in enumerate(stream)])
    assert [c.tokens for c in found.chunks] == [1, 2]


def test_a_plain_openai_stream_has_unknown_counts() -> None:
    stream = [choice(), choice(), choice("", "length"), USAGE]
    found = reply_of(Request((1,), 3), 0.0, [(0.0, e) for e in stream])
    assert [c.tokens for c in found.chunks] == [None, None]
    assert found.per_chunk() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ([choice(), {"error": {"message": "full"}}], "full"),
        ([choice()], "without a usage"),
        ([USAGE], "no tokens"),
        ([choice(), {"choices": [], "usage": {"completion_tokens": 2}}], "2 tokens instead of 3"),
    ],
)
def test_an_incomplete_stream_is_a_failure(stream: list[dict[str, object]], message: str) -> None:
    with pytest.raises(RequestFailed, match=message):
        reply_of(Request((1,), 3), 0.0, [(0.0, e) for e in stream])


# The traffic -------------------------------------------------------------------------------------


def test_the_schedule_is_the_same_for_the_same_seed() -> None:
    traffic = Traffic()
    assert schedule(traffic, 3) == schedule(traffic, 3)
    assert schedule(traffic, 3) != schedule(traffic, 4)


def test_arrivals_are_poisson_and_lengths_mixed_within_their_bounds() -> None:
    traffic = Traffic(rate=5.0, num_prompts=4000, prompt_tokens=(16, 64), reply_tokens=(8, 32))
    arrivals = schedule(traffic, 0)
    at = [arrival.at_s for arrival in arrivals]
    gaps = [b - a for a, b in pairwise(at)]
    mean = sum(gaps) / len(gaps)
    assert at[0] == 0.0
    assert mean == pytest.approx(1 / 5, rel=0.06)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation == pytest.approx(mean, rel=0.08)  # as exponential gaps have
    prompts = [len(arrival.request.prompt) for arrival in arrivals]
    replies = [arrival.request.tokens for arrival in arrivals]
    assert (min(prompts), max(prompts), min(replies), max(replies)) == (16, 64, 8, 32)
    ids = {token for arrival in arrivals[:50] for token in arrival.request.prompt}
    assert min(ids) >= FIRST_ID and max(ids) < traffic.vocab


def test_prompts_share_no_prefix() -> None:
    heads = [arrival.request.prompt[:3] for arrival in schedule(Traffic(num_prompts=200), 1)]
    assert len(set(heads)) == len(heads)


def test_goodput_counts_only_what_met_both_limits() -> None:
    quick = reply((0.5, 1), (0.55, 1), tokens=2)
    late = reply((1.5, 1), (1.55, 1), tokens=2)
    slow = reply((0.5, 1), (1.0, 1), tokens=2)
    found = traffic_figures([quick, late, slow], 1, 2.0, Limits(ttft_s=1.0, itl_s=0.1))
    assert found["goodput_req_per_s"] == 0.5
    assert found["good_percent"] == 25.0
    assert found["served_tok_per_s"] == 3.0
    assert found["failures"] == 1.0
    assert found["ttft_ms_p50"] == 500.0
    assert found["itl_ms_p99"] == pytest.approx(500.0)


def test_traffic_of_failures_alone_has_no_times() -> None:
    found = traffic_figures([], 3, 1.0, Limits())
    assert set(found) == {"served_tok_per_s", "goodput_req_per_s", "good_percent", "failures"}
    assert found["good_percent"] == 0.0


# Statistics --------------------------------------------------------------------------------------


def test_percentile_is_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, rank) for rank in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert math.isnan(percentile([], 50))


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 5)), min_size=1), st.integers(1, 100))
def test_a_weight_is_as_good_as_repetition(pairs: list[tuple[float, int]], rank: int) -> None:
    repeated = [value for value, count in pairs for _ in range(count)]
    weighted = [(value, float(count)) for value, count in pairs]
    assert percentile(weighted, rank) == percentile(repeated, rank)


def test_spread_shows_minimum_median_maximum() -> None:
    assert str(Spread.of([1883.0, 1821.0, 1898.0])) == "1,821–1,883–1,898"
    assert str(Spread.of([0.731, 0.76, 0.71])) == "0.71–0.73–0.76"
    assert Spread.of([1.0, 2.0]) == Spread(1.0, 1.5, 2.0, 2)


def test_runs_without_a_figure_leave_it_out() -> None:
    assert collect([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": [1.0, 3.0], "b": [2.0]}


def test_above_one_means_octavo_is_better_whatever_the_figure() -> None:
    assert times_better("decode_tok_per_s", [300.0], [100.0]) == pytest.approx(3.0)
    for time in ("load_s", "ttft_ms_p50", "itl_ms_p99", "longest_gap_ms_p99"):
        assert times_better(time, [1.0], [3.0]) == pytest.approx(3.0), time
    assert math.isnan(times_better("goodput_req_per_s", [1.0], [0.0]))


# The report --------------------------------------------------------------------------------------


def row(name: str, baselines: list[str], *runs: dict[str, float], way: str = "HTTP") -> Row:
    return Row(name, "1.0", "Q4_1", way, ("a note",), baselines, list(runs))


def report() -> Report:
    ours = [{"decode_tok_per_s": v, "load_s": 1.0} for v in (190.0, 200.0, 210.0)]
    theirs = [{"decode_tok_per_s": v, "load_s": 5.0} for v in (90.0, 100.0, 110.0)]
    rows = (
        row("octavo", ["octavo"], *ours),
        row("llama <cpp>", ["octavo-bench", "octavo"], *theirs),
        row("alone", ["octavo-bench"], {"decode_tok_per_s": 50.0}, way="own tool"),
        row("failed", ["octavo"]),
    )
    options = {"threads": 2, "runs": 3, "traffic": "some traffic"}
    skipped = {"vllm": "not installed: pip said no"}
    return Report("2026-12-01", {"cpu": "a CPU"}, "model", options, rows, skipped)


def test_the_table_has_spreads_ratios_and_reasons() -> None:
    text = to_markdown(report())
    assert "| octavo | Q4_1 | HTTP | 1.00–1.00–1.00 | 190–200–210 | – |" in text
    assert "| 5.00–5.00–5.00 **5.00×** | 90–100–110 **2.00×** | – |" in text
    assert "| alone | Q4_1 | own tool | – | 50.0–50.0–50.0 | – |" in text  # its baseline is absent
    assert "| failed |" not in text
    assert "Served traffic" not in text
    assert "- **vllm**: not installed: pip said no" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_the_plot_is_well_formed_and_has_a_bar_per_value() -> None:
    tree = ET.fromstring(to_svg(report()))
    fills = [e.get("fill") for e in tree.iter() if e.tag.endswith("rect")]
    assert len(fills) == 1 + 3 + 2  # the background, three engines decode, two load
    texts = [e.text for e in tree.iter() if e.tag.endswith("text")]
    assert "llama <cpp>" in texts


def test_the_json_holds_the_raw_runs() -> None:
    data = json.loads(to_json(report()))
    assert [run["decode_tok_per_s"] for run in data["rows"][0]["runs"]] == [190.0, 200.0, 210.0]
    assert data["skipped"] == {"vllm": "not installed: pip said no"}


def test_a_reason_is_the_end_of_what_a_command_wrote() -> None:
    assert last_lines("a\n\nb\nWARNING: x\nc\nd\n") == "b | c | d"
    assert re.fullmatch("x{600}", last_lines("x" * 2000))
