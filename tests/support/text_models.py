"""Tiny tokenizers as GGUF metadata, and plain versions of the algorithms to compare with."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np

from octavo.text import Tokenizer, TokenizerSource, load_tokenizer

P = "tokenizer.ggml."
MARK = "▁"


def byte_chars() -> list[str]:
    """GPT-2's table, written the way its paper's code builds it: printable bytes stand for
    themselves, the others count up from 256."""
    chars, spare = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            chars.append(chr(byte))
        else:
            chars.append(chr(spare))
            spare += 1
    return chars


def byte_level_meta(words: list[str], pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """Merges learnt greedily from `words`: each word's characters are merged left to right."""
    table = byte_chars()
    tokens = ["<|end|>", "<|user|>", *table]
    merges = []
    for word in words:
        pieces = [table[byte] for byte in word.encode()]
        while len(pieces) > 1:
            left, right = pieces[0], pieces[1]
            pieces[:2] = [left + right]
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    tokens.append("<tool>")
    types = [3, 3] + [1] * (len(tokens) - 3) + [4]
    return {
        P + "model": "gpt2",
        P + "pre": pre,
        P + "tokens": tokens,
        P + "merges": merges,
        P + "token_type": np.array(types, np.int32),
        P + "eos_token_id": 0,
        **{P + name: value for name, value in more.items()},
    }


def sentencepiece_meta(
    pieces: list[str], *, space_prefix: bool, user_defined: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """Pieces in the order of their scores, best first; single characters come last, as trained."""
    head = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*head, *raw, *user_defined, *pieces]
    types = [2, 3, 3] + [6] * 256 + [4] * len(user_defined) + [1] * len(pieces)
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(i) for i in range(len(pieces))]
    return {
        P + "model": "llama",
        P + "pre": "default",
        P + "tokens": tokens,
        P + "scores": np.array(scores, np.float32),
        P + "token_type": np.array(types, np.int32),
        P + "bos_token_id": 1,
        P + "eos_token_id": 2,
        P + "unknown_token_id": 0,
        P + "add_space_prefix": space_prefix,
        **{P + name: value for name, value in more.items()},
    }


def load(meta: dict[str, Any], **fields: Any) -> Tokenizer:
    return load_tokenizer(TokenizerSource(gguf=meta, **fields))


def random_pieces(rng: random.Random, alphabet: str, count: int) -> list[str]:
    """A vocabulary made as training makes one: pieces join two earlier ones."""
    pieces = list(alphabet)
    joined: list[str] = []
    while len(joined) < count:
        both = rng.choice(pieces) + rng.choice(pieces)
        if both not in pieces and len(both) <= 9:
            joined.append(both)
            pieces.append(both)
    rng.shuffle(joined)  # any order of scores, not only the one that training gives
    return joined + list(alphabet)


def sentencepiece_encode(text: str, meta: dict[str, Any]) -> list[int]:
    """SentencePiece's BPE as its paper states it: join the adjacent pair whose concatenation has
    the best score, the leftmost of equals, until none is a piece; unknown characters are bytes."""
    tokens = meta[P + "tokens"]
    score = {
        token: float(s)
        for token, s, kind in zip(tokens, meta[P + "scores"], meta[P + "token_type"], strict=True)
        if kind == 1
    }
    frozen = {
        t.replace(" ", MARK) for t, k in zip(tokens, meta[P + "token_type"], strict=True) if k == 4
    }
    index = {token.replace(" ", MARK): i for i, token in enumerate(tokens)}
    symbols = _split_at(text.replace(" ", MARK), frozen)
    while True:
        best = None
        for i in range(len(symbols) - 1):
            if symbols[i] in frozen or symbols[i + 1] in frozen:
                continue
            s = score.get(symbols[i] + symbols[i + 1])
            if s is not None and (best is None or s > best[0]):
                best = (s, i)
        if best is None:
            break
        i = best[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids = []
    for symbol in symbols:
        if symbol in index:
            ids.append(index[symbol])
        else:
            ids.extend(index[f"<0x{byte:02X}>"] for byte in symbol.encode())
    return ids


def _split_at(text: str, frozen: set[str]) -> list[str]:
    """Characters, but the longest frozen piece wherever one begins."""
    by_length = sorted(frozen, key=len, reverse=True)
    symbols, at = [], 0
    while at < len(text):
        symbol = next((f for f in by_length if text.startswith(f, at)), text[at])
        symbols.append(symbol)
        at += len(symbol)
    return symbols


def bpe_encode_word(word: str, meta: dict[str, Any]) -> list[int]:
    """Byte-level BPE of one pre-tokenized word: apply the earliest merge rule, leftmost first."""
    table = byte_chars()
    rank = {tuple(line.split(" ")): i for i, line in enumerate(meta[P + "merges"])}
    symbols = [table[byte] for byte in word.encode()]
    while len(symbols) > 1:
        pairs = [(rank.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(pairwise(symbols))]
        best, i = min(pairs)
        if best == 1 << 30:
            break
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return [meta[P + "tokens"].index(symbol) for symbol in symbols]
