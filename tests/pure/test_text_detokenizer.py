"""Incremental detokenization: any split gives the decode of the whole (R16)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text import Detokenizer, Tokenizer
from tests.support.text_models import byte_level_meta, load, sentencepiece_meta

BYTE_LEVEL = load(byte_level_meta(["the", " the", "안녕", "🇰🇷", " 👩‍👩‍👧"]))
PREFIXED = load(sentencepiece_meta(["▁the", "the", *"▁theab한"], space_prefix=True))
PLAIN = load(sentencepiece_meta(["▁the", "the", *"▁theab한"], space_prefix=False))
TOKENIZERS = [BYTE_LEVEL, PREFIXED, PLAIN]
PROPERTY = settings(derandomize=True, deadline=None, max_examples=300)


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(bounds)]


def stream(
    tokenizer: Tokenizer, chunks: list[list[int]], skip: bool = True, at_start: bool = False
) -> list[str]:
    one = Detokenizer(tokenizer, skip_special_tokens=skip, at_start=at_start)
    return [*(one.push(chunk) for chunk in chunks), one.flush()]


@PROPERTY
@given(
    st.sampled_from(TOKENIZERS),
    st.lists(st.integers(-1, 300), max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_any_ids_in_any_split_equal_the_decode_of_all(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool, at_start: bool
) -> None:
    deltas = stream(tokenizer, pieces_of(ids, cuts), skip, at_start)
    whole = b"".join(tokenizer.bytes_of(i, skip_special_tokens=skip) for i in ids)
    text = whole.decode("utf-8", "replace")
    if at_start and tokenizer.strips_leading_space:
        text = text.removeprefix(" ")
    assert "".join(deltas) == text == tokenizer.decode(ids, skip, at_start=at_start)
    assert all("\ufffd" not in d for d in deltas) or "\ufffd" in text


@PROPERTY
@given(st.sampled_from(TOKENIZERS), st.text(max_size=40), st.lists(st.integers(0, 60), max_size=6))
def test_real_text_equals_the_tokenizers_library(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    ids = tokenizer.encode(text, False)
    deltas = stream(tokenizer, pieces_of(ids, cuts), at_start=True)
    assert "".join(deltas) == tokenizer._inner.decode(ids)


@PROPERTY
@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=40))
def test_byte_level_equals_the_library_for_any_ids(ids: list[int]) -> None:
    assert "".join(stream(BYTE_LEVEL, [[i] for i in ids])) == BYTE_LEVEL._inner.decode(ids)


@pytest.mark.parametrize("text", ["안녕하세요", "🇰🇷🇯🇵", "👩‍👩‍👧‍👦 é", "a\ufffdb", "नमस्ते"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_characters_across_tokens_are_held_not_replaced(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, False)
    deltas = stream(tokenizer, [[i] for i in ids], at_start=True)
    assert "".join(deltas) == text
    assert "".join(deltas).count("\ufffd") == text.count("\ufffd")
    assert deltas[-1] == ""  # nothing was left


def test_an_unfinished_character_is_flushed_once() -> None:
    one = Detokenizer(BYTE_LEVEL)
    ids = BYTE_LEVEL.encode("é", False)
    assert [one.push(ids[:1]), one.flush(), one.flush()] == ["", "\ufffd", ""]


def test_leading_space_is_taken_off_once_and_only_at_the_start() -> None:
    the = PREFIXED.id_of("▁the")
    assert the is not None
    assert stream(PREFIXED, [[1], [the], [the]], at_start=True) == ["", "the", " the", ""]
    assert stream(PREFIXED, [[the], [the]]) == [" the", " the", ""]
    assert stream(PREFIXED, [[1], [the]], skip=False, at_start=True) == ["<s>", " the", ""]
    assert stream(PLAIN, [[PLAIN.id_of("▁the") or 0]], at_start=True) == [" the", ""]


def test_a_special_token_inside_a_character_leaves_no_trace_when_skipped() -> None:
    first, second = BYTE_LEVEL.encode("é", False)
    assert "".join(stream(BYTE_LEVEL, [[first], [0], [second]])) == "é"
    assert "".join(stream(BYTE_LEVEL, [[first, 0, second]], skip=False)) == "\ufffd<|end|>\ufffd"
