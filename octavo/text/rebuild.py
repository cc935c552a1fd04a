"""Tokenizers from GGUF metadata: the metadata's arrays → the JSON that `tokenizers` reads.

Two models are known. "gpt2" is byte-level BPE: its merges are in the file. "llama" is SentencePiece
BPE: the file has a score per piece and no merges. SentencePiece merges the adjacent pair whose
concatenation has the best score, leftmost first; `tokenizers` merges the pair with the best rank.

Why one merge per piece is exact. Let a piece p lie over a span of text. A merge that crosses the
span's border ends any chance that the span becomes p, so if p appears, all earlier merges inside
the span happened as they do when p is segmented alone, and the last one joined the same two halves.
So the rule "(left, right) → p", taken from segmenting p alone and ranked by p's score, is the only
one that can ever apply for p. Pieces that do not come together alone can never appear at all.
(Pieces of equal score are ranked by id; SentencePiece itself would take the leftmost.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from octavo.base.errors import ModelFileError, UnsupportedModelError
from octavo.text.pretokenize import GPT2_PATTERN, PreTokenizer, pre_tokenizer

PREFIX = "tokenizer.ggml."
SPACE_MARK = "▁"
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_FILE = "GGUF metadata"
_UNREACHED = 1 << 60


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def byte_alphabet() -> str:
    """256 printable characters: the one that stands for byte b is at index b (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in set(printable))
    table = {byte: chr(byte) for byte in printable}
    table.update((byte, chr(256 + i)) for i, byte in enumerate(others))
    return "".join(table[byte] for byte in range(256))


class GgufVocab:
    """The tokenizer part of GGUF metadata, checked: equal lengths, ids in range, no doubles.

    Raises ModelFileError naming the key, what was found and what was expected.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._meta = meta
        tokens = meta.get(PREFIX + "tokens")
        if tokens is None or isinstance(tokens, (str, bytes)) or not len(tokens):
            raise _wrong("tokens", None, "a list of token strings")
        # an empty string can't be a token: give it a name that no merge reaches
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
        if not all(type(token) is str for token in self.tokens):
            raise _wrong("tokens", "an array of other values", "a list of token strings")
        types = self._numbers("token_type", np.int64)
        self.types = np.full(len(self.tokens), TokenType.NORMAL) if types is None else types
        self.scores = self._numbers("scores", np.float64)
        self.ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.ids) != len(self.tokens):
            double = next(t for i, t in enumerate(self.tokens) if self.ids[t] != i)
            raise _wrong("tokens", double, "each token once")

    def _numbers(self, key: str, dtype: type[Any]) -> Any:
        value = self._meta.get(PREFIX + key)
        if value is None:
            return None
        array = np.asarray(value if isinstance(value, np.ndarray) else list(value)).astype(dtype)
        if array.shape != (len(self.tokens),):
            raise _wrong(key, f"shape {array.shape}", f"{len(self.tokens)} numbers")
        return array

    def token_id(self, key: str) -> int | None:
        """The id under `tokenizer.ggml.<key>_token_id`, if there is one."""
        value = self._meta.get(f"{PREFIX}{key}_token_id")
        if value is None:
            return None
        if not 0 <= int(value) < len(self.tokens):
            raise _wrong(f"{key}_token_id", value, f"an id below {len(self.tokens)}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._meta.get(PREFIX + key, default))

    def of_type(self, *types: TokenType) -> list[int]:
        return [int(i) for i in np.flatnonzero(np.isin(self.types, types))]

    def merges(self) -> list[tuple[str, str]]:
        """The file's merges; a merge is two pieces joined by a space (a piece has none inside)."""
        lines = self._meta.get(PREFIX + "merges")
        if lines is None or isinstance(lines, (str, bytes)):
            raise _wrong("merges", lines, "a list of merges")
        merges = []
        for line in lines:
            left, _, right = line.partition(" ")
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise _wrong("merges", line, "two tokens whose concatenation is a token")
            merges.append((left, right))
        return merges


def tokenizer_model(meta: Mapping[str, Any]) -> str:
    """ "gpt2" or "llama". Raises UnsupportedModelError for anything else."""
    model = meta.get(PREFIX + "model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            PREFIX + "model", value=model, limit="gpt2 (byte-level BPE) or llama (SentencePiece)"
        )
    return str(model)


def rebuild(meta: Mapping[str, Any]) -> bytes:
    """The `tokenizers` JSON for this metadata. Raises ModelFileError or UnsupportedModelError."""
    if tokenizer_model(meta) == "gpt2":
        pre = pre_tokenizer(str(meta.get(PREFIX + "pre", "default")))
        return _byte_level(GgufVocab(meta), pre)
    return _sentencepiece(GgufVocab(meta))


def sentencepiece_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Merges, best first, for pieces in the order of their score, best first."""
    rank = {piece: i for i, piece in enumerate(pieces)}
    halves = (_halves(piece, rank) for piece in pieces if len(piece) > 1)
    # a half that is no piece is a character outside the vocabulary: a rule can't name it
    return [pair for pair in halves if pair and pair[0] in rank and pair[1] in rank]


def _halves(piece: str, rank: dict[str, int]) -> tuple[str, str] | None:
    """What the last merge joins when `piece` is segmented alone; None if it never comes together.

    symbols: │ s0 │ s1 │ s2 │ …     ranks[i] is that of symbols[i] + symbols[i + 1]
    """
    symbols = list(piece)
    ranks = [rank.get(a + b, _UNREACHED) for a, b in pairwise(symbols)]
    while len(ranks) > 1:
        best = min(ranks)
        if best == _UNREACHED:
            return None
        i = ranks.index(best)  # the leftmost
        symbols[i] += symbols.pop(i + 1)
        del ranks[i]
        if i:
            ranks[i - 1] = rank.get(symbols[i - 1] + symbols[i], _UNREACHED)
        if i < len(ranks):
            ranks[i] = rank.get(symbols[i] + symbols[i + 1], _UNREACHED)
    return symbols[0], symbols[1]


def _sentencepiece(vocab: GgufVocab) -> bytes:
    if vocab.scores is None:
        raise _wrong("scores", None, "a score per token")
    bytes_present = vocab.of_type(TokenType.BYTE)
    unknown = _unknown(vocab)
    if unknown is None and len(bytes_present) < 256:
        raise _wrong("token_type", f"{len(bytes_present)} byte tokens", "256, or an unknown token")
    normal = np.flatnonzero(vocab.types == TokenType.NORMAL)
    best_first = normal[np.argsort(-vocab.scores[normal], kind="stable")]
    merges = sentencepiece_merges([vocab.tokens[i] for i in best_first])
    prefix = vocab.flag("add_space_prefix", True)
    mark: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    normalizer: dict[str, Any] = mark
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        prepend = {"type": "Prepend", "prepend": SPACE_MARK}
        normalizer = {"type": "Sequence", "normalizers": [prepend, mark]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = {
        "unk_token": None if unknown is None else vocab.tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": bool(bytes_present),
        "ignore_merges": False,
        "vocab": vocab.ids,
        "merges": merges,
    }
    # SentencePiece looks for user-defined pieces in text whose spaces are marked already. That is
    # `normalized`, but the prefix would be put before the piece as well.
    return _document(
        vocab,
        model,
        add_bos=True,
        normalize_added=not prefix,
        normalizer=normalizer,
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _unknown(vocab: GgufVocab) -> int | None:
    named = vocab.token_id("unknown")
    return named if named is not None else next(iter(vocab.of_type(TokenType.UNKNOWN)), None)


def _byte_level(vocab: GgufVocab, pre: PreTokenizer) -> bytes:
    # the GPT-2 pattern is built into the byte-level step, where it is faster
    built_in = pre.patterns[-1] == GPT2_PATTERN
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in (pre.patterns[:-1] if built_in else pre.patterns)
    ]
    byte_step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    steps.append({**byte_step, "use_regex": built_in})
    model = {
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre.ignore_merges,
        "vocab": vocab.ids,
        "merges": vocab.merges(),
    }
    return _document(
        vocab,
        model,
        add_bos=pre.add_bos,
        normalize_added=False,
        normalizer={"type": "NFC"} if pre.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        decoder={**byte_step, "use_regex": True},
    )


def _document(
    vocab: GgufVocab,
    model: dict[str, Any],
    *,
    add_bos: bool,
    normalize_added: bool,
    **parts: dict[str, Any] | None,
) -> bytes:
    special = set(vocab.of_type(TokenType.CONTROL, TokenType.UNKNOWN))
    bos, eos = vocab.token_id("bos"), vocab.token_id("eos")
    special.update(i for i in (bos, eos) if i is not None)
    added = sorted(special.union(vocab.of_type(TokenType.USER_DEFINED)))
    first = bos if vocab.flag("add_bos_token", add_bos) else None
    last = eos if vocab.flag("add_eos_token", False) else None
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": vocab.tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": normalize_added and i not in special,
                "special": i in special,
            }
            for i in added
        ],
        "post_processor": _around(vocab, first, last),
        "model": {
            "type": "BPE",
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            **model,
        },
        **parts,
    }
    return msgspec.json.encode(document)


def _around(vocab: GgufVocab, first: int | None, last: int | None) -> dict[str, Any] | None:
    """The post-processor that puts BOS before and EOS after, where asked."""
    if first is None and last is None:
        return None

    def special(token: int | None) -> list[dict[str, Any]]:
        return (
            [] if token is None else [{"SpecialToken": {"id": vocab.tokens[token], "type_id": 0}}]
        )

    def sequence(name: str) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": 0}}]

    return {
        "type": "TemplateProcessing",
        "single": special(first) + sequence("A") + special(last),
        "pair": special(first) + sequence("A") + sequence("B") + special(last),
        "special_tokens": {
            vocab.tokens[i]: {"id": vocab.tokens[i], "ids": [i], "tokens": [vocab.tokens[i]]}
            for i in (first, last)
            if i is not None
        },
    }


def _wrong(key: str, found: object, expected: str) -> ModelFileError:
    return ModelFileError(_FILE, PREFIX + key, found=found, expected=expected)
