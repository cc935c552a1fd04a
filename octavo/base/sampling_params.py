"""How to draw tokens: one request's parameters, each checked against a bound when it is made.

The order in which they act is fixed (vLLM's) and the same on every backend:

    allowed ids, bad words, min_tokens, logit bias → repetition, presence and frequency penalties
    → temperature → min-p → top-k → top-p over the survivors → draw
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from octavo.base.errors import RequestError

MAX_TOKENS_LIMIT = 2**31 - 1
MAX_STOP_STRINGS = 32
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 64
MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1

# name → (lower, upper, lower is excluded); both finite bounds are included otherwise
_FLOAT_BOUNDS: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.01, 100.0, False),
}
_INT_BOUNDS: dict[str, tuple[int, int]] = {
    "n": (1, 1),
    "top_k": (-1, 2**31 - 1),
    "min_tokens": (0, MAX_TOKENS_LIMIT),
}
_BOOLS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)


class RequestOutputKind(Enum):
    """What each output of a stream holds: all so far, what is new, or one output at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Sampling parameters of one request, with vLLM's names and defaults.

    temperature: 0 is greedy (arg max, lowest id on a tie); so is anything below 1e-5, as in vLLM.
    top_k: 0 or -1 turns it off.
    seed: None draws a fresh one when the request is admitted.
    stop: up to 32 strings of at most 1,024 bytes; the reply is cut before the first match.
    stop_token_ids: ids that end the reply, besides the model's EOS ids.
    max_tokens: None means up to the context.
    min_tokens: EOS and stop ids are masked until this many tokens are generated.
    logprobs: how many of the most likely tokens to report per drawn token, at most 20.
    logit_bias: token id → a number in [-100, 100] added to its logit.
    bad_words: words that are never completed.
    bad_words_token_ids: the same as token sequences; the client fills it in from `bad_words`.

    Raises RequestError (with `param`) for a value of the wrong type or out of bounds. Ids are
    checked against a vocabulary by `check_vocab`.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        for name, bounds in _FLOAT_BOUNDS.items():
            _check_float(name, getattr(self, name), *bounds)
        for name, (low, high) in _INT_BOUNDS.items():
            _check_int(name, getattr(self, name), low, high)
        for name in _BOOLS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise _wrong(name, value, "true or false")
        if self.seed is not None:
            _check_int("seed", self.seed, SEED_MIN, SEED_MAX)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT)
            if self.min_tokens > self.max_tokens:
                raise _wrong("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs is not supported yet",
                param="prompt_logprobs",
                value=self.prompt_logprobs,
                limit="null",
            )
        _check_stop(self.stop)
        _check_strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        _check_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        _check_ids("allowed_token_ids", self.allowed_token_ids, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _wrong("allowed_token_ids", [], "at least one token id, or null")
        _check_bias(self.logit_bias)
        _check_sequences(self.bad_words_token_ids)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def check_vocab(self, vocab_size: int) -> None:
        """Raise RequestError for any token id outside [0, vocab_size)."""
        fields: dict[str, Sequence[int]] = {
            "stop_token_ids": self.stop_token_ids or (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": tuple(self.logit_bias or ()),
            "bad_words_token_ids": [i for ids in self.bad_words_token_ids or () for i in ids],
        }
        for name, ids in fields.items():
            for token in ids:
                if token >= vocab_size:
                    raise _wrong(name, token, f"token ids below the vocabulary size {vocab_size}")

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked again."""
        return msgspec.structs.replace(self, **changes)


def _wrong(name: str, value: object, limit: str) -> RequestError:
    return RequestError(name, param=name, value=value, limit=limit)


def _check_float(name: str, value: object, low: float, high: float, low_excluded: bool) -> None:
    bound = f"a number in {'(' if low_excluded else '['}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, value, bound)
    if not math.isfinite(value) or value < low or value > high or (low_excluded and value == low):
        raise _wrong(name, value, bound)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        bound = f"{low}" if low == high else f"a whole number in [{low}, {high}]"
        raise _wrong(name, value, bound)


def _check_ids(name: str, ids: object, most: int | None) -> None:
    if ids is None:
        return
    if not isinstance(ids, (list, tuple)):
        raise _wrong(name, ids, "a list of token ids")
    if most is not None and len(ids) > most:
        raise _wrong(name, f"{len(ids)} ids", f"at most {most} ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise _wrong(name, token, "token ids of 0 or more")


def _check_sequences(sequences: object) -> None:
    if sequences is None:
        return
    name, most = "bad_words_token_ids", 2 * MAX_BAD_WORDS  # each word without and with a space
    if not isinstance(sequences, (list, tuple)) or len(sequences) > most:
        raise _wrong(name, sequences, f"a list of at most {most} lists of token ids")
    for ids in sequences:
        _check_ids(name, ids, MAX_BAD_WORD_TOKENS)
        if not ids:
            raise _wrong(name, ids, "lists of at least one token id")


def _check_strings(name: str, strings: object, most: int) -> None:
    if strings is None:
        return
    if not isinstance(strings, (list, tuple)):
        raise _wrong(name, strings, "a list of strings")
    if len(strings) > most:
        raise _wrong(name, f"{len(strings)} strings", f"at most {most} strings")
    for text in strings:
        if not isinstance(text, str) or not text:
            raise _wrong(name, text, "strings that are not empty")
        if len(text) > MAX_STOP_STRING_BYTES or len(_utf8(name, text)) > MAX_STOP_STRING_BYTES:
            limit = f"strings of at most {MAX_STOP_STRING_BYTES} bytes"
            raise _wrong(name, f"{len(text)} characters", limit)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(name, text, "text without lone surrogates") from None


def _check_stop(stop: object) -> None:
    if isinstance(stop, str):
        stop = [stop]
    _check_strings("stop", stop, MAX_STOP_STRINGS)


def _check_bias(bias: object) -> None:
    if bias is None:
        return
    if not isinstance(bias, Mapping):
        raise _wrong("logit_bias", bias, "an object of token id to number")
    if len(bias) > MAX_LOGIT_BIAS:
        raise _wrong("logit_bias", f"{len(bias)} entries", f"at most {MAX_LOGIT_BIAS} entries")
    for token, value in bias.items():
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise _wrong("logit_bias", token, "token ids of 0 or more")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong("logit_bias", value, "a number in [-100, 100]")
        if not -100.0 <= value <= 100.0:  # also false for NaN
            raise _wrong("logit_bias", value, "a number in [-100, 100]")
