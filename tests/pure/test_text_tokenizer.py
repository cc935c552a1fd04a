"""Tokenizers from GGUF metadata and from tokenizer.json; their bytes; the cache."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.errors import ModelFileError, RequestError, UnsupportedModelError
from octavo.text import TokenizerSource, cache, load_tokenizer
from octavo.text.pretokenize import PRE_TOKENIZERS
from tests.support.text_models import (
    P,
    bpe_encode_word,
    byte_level_meta,
    load,
    random_pieces,
    sentencepiece_encode,
    sentencepiece_meta,
)

WORDS = ["the", " the", " cat", "ing", "안녕", " 😀", "11", "\n\n", "don", "'t"]
PROPERTY = settings(derandomize=True, deadline=None, max_examples=150)


@pytest.mark.parametrize("seed", range(12))
def test_sentencepiece_merges_equal_the_best_score_rule(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "ab" if seed % 2 else "abcé▁한"
    meta = sentencepiece_meta(random_pieces(rng, alphabet, 10 + 6 * seed), space_prefix=False)
    tokenizer = load(meta)
    for _ in range(150):
        length = rng.randint(0, 40)
        text = "".join(rng.choice(alphabet.replace("▁", " ") + "xü") for _ in range(length))
        assert tokenizer.encode(text, False) == sentencepiece_encode(text, meta), text


def test_sentencepiece_user_defined_pieces_are_taken_whole_and_longest_first() -> None:
    pieces = random_pieces(random.Random(3), "ab▁<>", 30)
    own = ("  ", "    ", "\n", "\n\n", "<b>")
    meta = sentencepiece_meta(
        [p for p in pieces if p not in ("▁▁", "▁▁▁▁", "<b>")], space_prefix=False, user_defined=own
    )
    tokenizer = load(meta)
    rng = random.Random(4)
    for _ in range(200):
        text = "".join(rng.choice(["a", "b", " ", "  ", "\n", "<b>", ">"]) for _ in range(20))
        ids = tokenizer.encode(text, False)
        assert ids == sentencepiece_encode(text, meta), text
        assert tokenizer.decode(ids) == text
    assert not tokenizer.special.intersection(tokenizer.encode("<b>\n", False))


def test_sentencepiece_space_prefix_bos_and_special_tokens_in_text() -> None:
    meta = sentencepiece_meta(["▁a", "a", "b", "▁"], space_prefix=True)
    tokenizer = load(meta)
    piece = tokenizer.piece
    assert [piece(i) for i in tokenizer.encode("ab")] == ["<s>", "▁a", "b"]
    assert [piece(i) for i in tokenizer.encode("a</s>a", False)] == ["▁a", "</s>", "▁a"]
    ids = tokenizer.encode(" a", False)
    assert tokenizer.decode(ids) == " a"
    assert tokenizer.decode(ids, at_start=False) == "  a"
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.strips_leading_space) == (1, (2,), True)
    assert tokenizer.special == {0, 1, 2}


@PROPERTY
@given(st.text(max_size=60))
def test_every_text_survives_both_kinds(text: str) -> None:
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        ids = tokenizer.encode(text, False)
        if "▁" not in text:
            assert tokenizer.decode(ids, False) == text
        assert tokenizer.decode(ids) == tokenizer._inner.decode(ids)


BYTE_LEVEL = load(byte_level_meta(WORDS))
SENTENCEPIECE = load(sentencepiece_meta(["▁th", "th", *"▁theab한"], space_prefix=False))


@pytest.mark.parametrize("seed", range(4))
def test_byte_level_equals_plain_bpe(seed: int) -> None:
    meta = byte_level_meta([*WORDS, "lower", "lowest", " newer"], pre="gpt-2")
    tokenizer = load(meta)
    # words as the GPT-2 pattern cuts ASCII text
    pattern = re.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
    )
    rng = random.Random(seed)
    for _ in range(100):
        text = "".join(rng.choice("thecat lowrns'd11  \n!") for _ in range(40))
        expected = [i for word in pattern.findall(text) for i in bpe_encode_word(word, meta)]
        assert tokenizer.encode(text) == expected, text


# What each family's published pattern makes of one line.
LINE = "Don't   go2HELLOworld 12345 x=[1]\n\n  日本"
CUTS = {
    "gpt-2": "Don|'t|  | go|2|HELLOworld| 12345| x|=[|1|]|\n\n | 日本",
    "smollm": "Don|'t|  | go|2|HELLOworld| |1|2|3|4|5| x|=[|1|]|\n\n | 日本",
    "llama-bpe": "Don|'t|  | go|2|HELLOworld| |123|45| x|=[|1|]\n\n| | 日本",
    "qwen2": "Don|'t|  | go|2|HELLOworld| |1|2|3|4|5| x|=[|1|]\n\n| | 日本",
    "tekken": "Don|'t|  | go|2|HELLOworld| |1|2|3|4|5| x|=[|1|]\n\n| | 日本",
    "gpt-4o": "Don't|  | go|2|HELLOworld| |123|45| x|=[|1|]\n\n| | 日本",
}


@pytest.mark.parametrize("name", sorted(CUTS))
def test_pre_tokenizers_cut_where_the_family_does(name: str) -> None:
    inner = load(byte_level_meta([], pre=name))._inner
    words = [LINE[a:b] for _, (a, b) in inner.pre_tokenizer.pre_tokenize_str(LINE)]
    assert words == CUTS[name].split("|")


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(name: str) -> None:
    tokenizer = load(byte_level_meta(WORDS, pre=name))
    for text in (LINE, "a  b\t\r\n c'S 1234567 $9 «é» नमस्ते 👩‍👩‍👧 \u3000x", " ", ""):
        assert tokenizer.decode(tokenizer.encode(text, False)) == text


def test_unknown_kinds_are_refused_with_what_is_known() -> None:
    with pytest.raises(UnsupportedModelError, match=r"pre: got 'wat'.*qwen2.*smollm"):
        load(byte_level_meta([], pre="wat"))
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        load({P + "model": "bert"})
    with pytest.raises(UnsupportedModelError, match="no tokenizer"):
        load_tokenizer(TokenizerSource())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": ["a", "a"], "token_type": None, "merges": []}, "each token once"),
        ({"tokens": ["a", 1], "token_type": None, "merges": []}, "token strings"),
        ({"token_type": np.ones(3, np.int32)}, "token_type"),
        ({"merges": ["q zz"]}, "merges"),
        ({"merges": ["Ġ"]}, "merges"),
        ({"merges": None}, "merges"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
    ],
)
def test_metadata_that_lies_is_refused(change: dict[str, Any], message: str) -> None:
    meta = byte_level_meta(WORDS)
    meta.update((P + key, value) for key, value in change.items())
    with pytest.raises(ModelFileError, match=message):
        load(meta)


def test_sentencepiece_needs_scores() -> None:
    meta = sentencepiece_meta(["a"], space_prefix=False)
    del meta[P + "scores"]
    with pytest.raises(ModelFileError, match="scores"):
        load(meta)


def test_lone_surrogates_are_the_request_s_fault() -> None:
    with pytest.raises(RequestError) as caught:
        BYTE_LEVEL.encode("a\ud800")
    assert caught.value.param == "prompt"


def test_token_bytes_are_what_each_id_adds() -> None:
    table = BYTE_LEVEL.token_bytes
    assert [table[i] for i in range(2, 258)] == [bytes((b,)) for b in range(256)]
    assert table[0] == b"<|end|>" and BYTE_LEVEL.bytes_of(0) == b""
    assert BYTE_LEVEL.id_of("<tool>") not in BYTE_LEVEL.special
    assert table[len(table) - 1] == b"<tool>"
    assert BYTE_LEVEL.bytes_of(10**9) == BYTE_LEVEL.bytes_of(-1) == b""
    assert [SENTENCEPIECE.token_bytes[3 + b] for b in range(256)] == [
        bytes((b,)) for b in range(256)
    ]
    assert SENTENCEPIECE.token_bytes[259] == b" th"
    assert SENTENCEPIECE.token_bytes[259:261] == [b" th", b"th"]
    with pytest.raises(IndexError):
        table[len(table)]


def test_added_tokens_are_literal_even_in_the_byte_alphabet() -> None:
    meta = byte_level_meta([])
    meta[P + "tokens"] = [*meta[P + "tokens"], "é<é>", "<｜x▁y｜>"]
    meta[P + "token_type"] = np.append(meta[P + "token_type"], [4, 3]).astype(np.int32)
    tokenizer = load(meta)
    assert tokenizer.decode(tokenizer.encode("aé<é>b"), False) == "aé<é>b"
    assert tokenizer.token_text(tokenizer.vocab_size - 1) == "<｜x▁y｜>"


def test_eos_ids_join_the_file_and_the_generation_config() -> None:
    meta = byte_level_meta([], eot_token_id=1)
    assert load(meta).eos_ids == (0, 1)
    assert load(byte_level_meta([], eos_token_id=1)).eos_ids == (1, 0)  # <|end|> ends a turn
    assert load(meta, generation_config={"eos_token_id": [5, 0]}).eos_ids == (0, 1, 5)
    assert load(byte_level_meta([]), generation_config={"eos_token_id": 7}).eos_ids == (0, 7)


@pytest.mark.parametrize("value", ["2", [1, None], -1, True, 1.5])
def test_an_eos_id_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ModelFileError, match="eos_token_id"):
        load(byte_level_meta([]), generation_config={"eos_token_id": value})


def test_chat_template_of_the_source_wins() -> None:
    meta = {**byte_level_meta([]), "tokenizer.chat_template": "file"}
    assert load(meta).chat_template == "file"
    assert load(meta, chat_template="own").chat_template == "own"


def test_tokenizer_json_with_its_config(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    inner = BYTE_LEVEL._inner
    document = json.loads(inner.to_str())
    document["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    config: dict[str, Any] = {
        "bos_token": {"content": "<|user|>"},
        "eos_token": "<|end|>",
        "chat_template": [{"name": "other", "template": "o"}, {"name": "default", "template": "d"}],
        "added_tokens_decoder": {str(BYTE_LEVEL.vocab_size): {"content": "<new>", "special": True}},
    }
    tokenizer = load_tokenizer(TokenizerSource(tokenizer_json=path, tokenizer_config=config))
    text = "the cat is longer than two tokens<new>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, False) == text  # never cut silently
    assert ids[-1] == BYTE_LEVEL.vocab_size and ids[-1] in tokenizer.special
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.chat_template) == (1, (0,), "d")
    config["added_tokens_decoder"] = {"9999": {"content": "<far>"}}
    with pytest.raises(ModelFileError, match="id 9999"):
        load_tokenizer(TokenizerSource(tokenizer_json=path, tokenizer_config=config))
    lies: list[Any] = [{"x": {"content": "a"}}, {"1": {}}, {"1": 2}, [1]]
    for lie in lies:
        config["added_tokens_decoder"] = lie
        with pytest.raises(ModelFileError, match="added_tokens_decoder"):
            load_tokenizer(TokenizerSource(tokenizer_json=path, tokenizer_config=config))
    path.write_text('{"model": ')
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_tokenizer(TokenizerSource(tokenizer_json=path))
    with pytest.raises(ModelFileError):
        load_tokenizer(TokenizerSource(tokenizer_json=tmp_path / "none"))


class Lazy(list[str]):
    """A sequence that shows its raw bytes, as the header reader's does."""

    @property
    def buffer(self) -> bytes:
        return "\0".join(self).encode()


@pytest.mark.parametrize("kind", ["list", "lazy", "content id"])
def test_cache_is_used_and_a_damaged_entry_is_rebuilt(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = byte_level_meta(WORDS)
    if kind == "lazy":
        meta[P + "tokens"] = Lazy(meta[P + "tokens"])
    fields = {"cache_dir": tmp_path, "content_id": "sha" if kind == "content id" else ""}
    expected = load(meta, **fields).encode("the cat")
    (entry,) = (tmp_path / "tokenizers").glob("*")
    whole = entry.read_bytes()
    changed = whole.replace("Ġthe".encode(), "Ġtha".encode())
    assert changed != whole
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        changed,
        whole[:-1] + b"x",
    ):
        entry.write_bytes(damaged)
        assert load(meta, **fields).encode("the cat") == expected
        assert entry.read_bytes() == whole
    monkeypatch.setattr("octavo.text.tokenizer.rebuild", lambda meta: pytest.fail("rebuilt"))
    assert load(meta, **fields).encode("the cat") == expected
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_cache_keys_differ_wherever_the_metadata_does() -> None:
    meta = byte_level_meta(WORDS)
    variants = [
        meta,
        {**meta, P + "pre": "qwen2"},
        {**meta, P + "add_bos_token": True},
        {**meta, P + "add_bos_token": 1},
        {**meta, P + "merges": meta[P + "merges"][::-1]},
        {**meta, P + "tokens": ["".join(meta[P + "tokens"][:2]), *meta[P + "tokens"][2:]]},
        {**meta, P + "token_type": meta[P + "token_type"].astype(np.int64)},
    ]
    keys = {cache.content_key(variant, "") for variant in variants}
    assert len(keys) == len(variants)
    assert cache.content_key({**meta, "general.name": "other"}, "") in keys


def test_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert load(byte_level_meta([]), cache_dir=blocker).encode("a")


def test_importing_text_loads_neither_jinja2_nor_tokenizers() -> None:
    code = "import sys, octavo.text; print({'jinja2', 'tokenizers', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_all_is_sorted_and_complete() -> None:
    import octavo.text as text

    assert text.__all__ == sorted(text.__all__)
    assert all(hasattr(text, name) for name in text.__all__)
