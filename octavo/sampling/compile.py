"""A request's parameters compiled to what a backend reads: plain numbers and arrays."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from octavo.backends.api import RowSampling
from octavo.base.errors import RequestError
from octavo.base.sampling_params import MAX_BAD_WORD_TOKENS, SamplingParams

_MASK_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class SeedSource:
    """Seeds for requests that bring none.

    seed None: each is drawn from the system. Otherwise they are a fixed sequence, so that the same
    requests in the same order draw the same tokens from start to start.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = None if seed is None else seed & _MASK_64
        self._count = 0

    def draw(self) -> int:
        """The next seed, 64 bits."""
        if self._seed is None:
            return secrets.randbits(64)
        self._count += 1
        return _mix((self._seed + self._count * _GOLDEN) & _MASK_64)


def _mix(x: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection of 64 bits."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def bad_word_sequences(
    words: Iterable[str], encode: Callable[[str], Sequence[int]]
) -> list[list[int]]:
    """Token sequences that complete one of `words`, without and with a leading space.

    encode: text → ids without special tokens. The variant with a space counts only where the space
    is part of the word's first token (vLLM's rule); otherwise the variant without one covers it.
    Raises RequestError (`bad_words`) for a word of too many tokens or none.
    """
    found: list[list[int]] = []
    for word in words:
        bare = word.lstrip()
        plain = list(encode(bare)) if bare else []
        if not plain or len(plain) > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"bad_words: {word!r} has {len(plain)} tokens",
                param="bad_words",
                limit=f"words of 1 to {MAX_BAD_WORD_TOKENS} tokens",
            )
        found.append(plain)
        spaced = list(encode(" " + bare))
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    return found


def compile_row(params: SamplingParams, *, eos_ids: Sequence[int], prompt_len: int) -> RowSampling:
    """The row's sampling parameters. `params.seed` and `bad_words_token_ids` are settled already.

    Negative seeds map to 64 bits (two's complement).
    """
    bias = params.logit_bias or {}
    allowed = params.allowed_token_ids
    stop_ids = sorted({*eos_ids, *(params.stop_token_ids or ())})
    return RowSampling(
        temperature=0.0 if params.greedy else float(params.temperature),
        top_k=max(0, params.top_k),
        top_p=float(params.top_p),
        min_p=float(params.min_p),
        repetition_penalty=float(params.repetition_penalty),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        seed=(params.seed or 0) & _MASK_64,
        prompt_len=prompt_len,
        min_len=prompt_len + params.min_tokens if params.min_tokens else 0,
        stop_ids=np.array(stop_ids, np.int32),
        bias_ids=np.fromiter(bias, np.int32, len(bias)),
        bias_values=np.fromiter(bias.values(), np.float32, len(bias)),
        allowed_ids=None if allowed is None else np.unique(np.array(allowed, np.int32)),
        bad_words=tuple(np.array(ids, np.int32) for ids in params.bad_words_token_ids or ()),
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
    )
