"""Stop strings in bytes (engine) and in text (client): the same match, whatever the split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text import Detokenizer, Match, StopCutter, StopMatcher
from tests.support.text_models import byte_level_meta, load

PROPERTY = settings(derandomize=True, deadline=None, max_examples=400)
STOPS = st.lists(st.text("ab한é\ufffd", min_size=1, max_size=5), min_size=1, max_size=4)


def first_match(text: str, stops: list[str]) -> tuple[int, int, int] | None:
    """(end, start, index) by trying every end, the definition."""
    for end in range(len(text) + 1):
        found = [(end - len(stop), i) for i, stop in enumerate(stops) if text[:end].endswith(stop)]
        if found:
            return (end, *min(found))
    return None


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def run_matcher(stops: list[str], chunks: list[bytes]) -> Match | None:
    matcher = StopMatcher([stop.encode() for stop in stops])
    return next((m for m in map(matcher.push, chunks) if m is not None), None)


@PROPERTY
@given(STOPS, st.text("ab한é\ufffd", max_size=40), st.lists(st.integers(0, 90), max_size=12))
def test_matcher_finds_the_first_complete_stop(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    expected = first_match(text, stops)
    match = run_matcher(stops, split(text.encode(), cuts))
    if expected is None:
        assert match is None
    else:
        assert match == Match(stop=expected[2], start=len(text[: expected[1]].encode()))


@PROPERTY
@given(
    STOPS, st.text("ab한é", max_size=40), st.lists(st.integers(0, 40), max_size=12), st.booleans()
)
def test_cutter_cuts_there_and_holds_only_prefixes(
    stops: list[str], text: str, cuts: list[int], include: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cutter = StopCutter(stops, include)
    out, fed = "", ""
    for a, b in pairwise(bounds):
        out += cutter.push(text[a:b])
        fed += text[a:b]
        if cutter.stop is not None:
            break
        held = fed[len(out) :]
        assert fed.startswith(out)
        # what is held is exactly the longest end that could still become a stop
        could = [n for s in stops for n in range(1, len(s)) if fed.endswith(s[:n])]
        assert len(held) == max(could, default=0)
    expected = first_match(text, stops)
    if expected is None:
        assert cutter.stop is None
        assert out + cutter.flush() == text
    else:
        end, start, index = expected
        assert (cutter.stop, out) == (stops[index], text[: end if include else start])
        assert cutter.flush() == "" and cutter.push("more") == ""


TOKENIZER = load(byte_level_meta(["DEF", "한한", "ab"]))


@PROPERTY
@given(
    STOPS,
    st.lists(
        st.sampled_from(
            [
                0,
                *(2 + b for b in "ab한é\ufffd".encode()),
                2 + 0xED,
                2 + 0xFF,
                TOKENIZER.vocab_size - 2,
            ]
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_engine_and_client_agree_for_any_tokens(
    stops: list[str], ids: list[int], skip: bool
) -> None:
    matcher = StopMatcher([stop.encode() for stop in stops])
    detokenizer, cutter = Detokenizer(TOKENIZER, skip_special_tokens=skip), StopCutter(stops)
    for i in ids:
        match = matcher.push(TOKENIZER.bytes_of(i, skip_special_tokens=skip))
        cutter.push(detokenizer.push([i]))
        assert (None if match is None else stops[match.stop]) == cutter.stop
        if match is not None:
            break


def test_stop_inside_a_token_and_the_longer_one_that_never_completes() -> None:  # R17
    stops = ["DEFGHIJ", "DE"]
    cutter = StopCutter(stops)
    assert [cutter.push("ABC"), cutter.push("DEF"), cutter.stop] == ["ABC", "", "DE"]
    assert run_matcher(stops, [b"ABC", b"DEF"]) == Match(stop=1, start=3)
    kept = StopCutter(stops, include=True)
    assert kept.push("ABCDEF") == "ABCDE"


def test_nothing_is_delayed_unless_it_may_be_a_stop() -> None:  # R18
    cutter = StopCutter(["<end>", "STOP"])
    deltas = [cutter.push(delta) for delta in ("Hello", " wor", "ld S", "TO", "Y <", "en", "d")]
    assert deltas == ["Hello", " wor", "ld ", "", "STOY ", "", ""]
    assert cutter.flush() == "<end"


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [4], [1, 2, 3, 4]])
def test_the_first_to_complete_wins_however_it_is_split(cuts: list[int]) -> None:
    assert run_matcher(["abcde", "bcd"], split(b"abcde", cuts)) == Match(stop=1, start=1)


def test_ties_go_to_the_earlier_start_then_the_first_listed() -> None:
    assert run_matcher(["c", "bc"], [b"abc"]) == Match(stop=1, start=1)
    assert run_matcher(["bc", "bc"], [b"abc"]) == Match(stop=0, start=1)


def test_positions_are_absolute_and_memory_is_bounded() -> None:
    matcher = StopMatcher([b"xyz"])
    for _ in range(1000):
        assert matcher.push(b"xyxyxxy") is None
        assert len(matcher._tail) <= 2
    assert matcher.push(b"z") == Match(stop=0, start=6998)


def test_no_stops_pass_everything() -> None:
    assert StopMatcher([]).push(b"abc") is None
    cutter = StopCutter([])
    assert cutter.push("abc") == "abc" and cutter.flush() == ""


def test_replacement_characters_match_as_the_client_sees_them() -> None:
    matcher = StopMatcher(["\ufffda".encode()])
    assert matcher.push(b"x\xff") is None
    assert matcher.push(b"a") == Match(stop=0, start=1)
