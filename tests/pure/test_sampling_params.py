"""Every field of SamplingParams has a bound, and a value outside is a RequestError naming it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from octavo.base.errors import (
    CapacityError,
    ContextLengthError,
    ModelFileError,
    ModelNotServedError,
    OctavoError,
    QueueFullError,
    RequestError,
    RequestTooLargeError,
)
from octavo.base.sampling_params import SamplingParams

WRONG: list[tuple[str, Any]] = [
    *[
        (name, value)
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        for value in ("1", True, None, math.nan, math.inf, -math.inf, 1e9, -3.0)
    ],
    ("top_p", 0.0),
    ("top_p", 1.5),
    ("temperature", -1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 1e-60),
    ("repetition_penalty", "x"),
    ("n", 2),
    ("n", 5_000_000),
    ("n", 0),
    ("top_k", -2),
    ("top_k", 1.0),
    ("top_k", 2**40),
    ("seed", "x"),
    ("seed", 1.5),
    ("seed", 2**64),
    ("seed", True),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("max_tokens", 2**70),
    ("max_tokens", "16"),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("logprobs", 21),
    ("logprobs", 10**9),
    ("logprobs", -1),
    ("prompt_logprobs", 1),
    ("stop", [""]),
    ("stop", ["a"] * 33),
    ("stop", "a" * 1025),
    ("stop", "é" * 600),
    ("stop", 3),
    ("stop", [3]),
    ("stop", "\ud800"),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["1"]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", [2**31]),
    ("stop_token_ids", list(range(300))),
    ("stop_token_ids", 7),
    ("bad_words", ["a"] * 10_000),
    ("bad_words", [""]),
    ("bad_words", "ab"),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [1.0]),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"x": 1.0}),
    ("logit_bias", {1: "x"}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: 101.0}),
    ("logit_bias", dict.fromkeys(range(2000), 1.0)),
    ("logit_bias", [1]),
    ("ignore_eos", 1),
    ("ignore_eos", None),
    ("detokenize", "yes"),
    ("skip_special_tokens", 0),
    ("include_stop_str_in_output", "no"),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda v: repr(v)[:30])
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


def test_bounds_themselves_are_allowed() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=0, presence_penalty=-2, frequency_penalty=2)
    SamplingParams(seed=-(2**63)), SamplingParams(seed=2**64 - 1)
    SamplingParams(logprobs=20, top_k=-1, max_tokens=2**31 - 1, stop=["a"] * 32)
    SamplingParams(logit_bias=dict.fromkeys(range(300), 0.5), allowed_token_ids=list(range(2000)))


@pytest.mark.parametrize(
    "field",
    [{"stop_token_ids": [100]}, {"allowed_token_ids": [3, 105]}, {"logit_bias": {100: 1.0}}],
    ids=lambda f: next(iter(f)),
)
def test_ids_beyond_the_vocabulary_are_refused(field: dict[str, Any]) -> None:
    params = SamplingParams(**field)
    params.check_vocab(106)
    with pytest.raises(RequestError, match="vocabulary size 100") as caught:
        params.check_vocab(100)
    assert caught.value.param == next(iter(field))


def test_it_crosses_a_process_unchanged() -> None:
    params = SamplingParams(stop=["x"], logit_bias={5: 1.0}, seed=2**63, temperature=0.3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_temperature_that_divides_by_almost_nothing_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=1e-40).greedy
    assert not SamplingParams(temperature=1e-5).greedy


def test_replace_checks_again() -> None:
    with pytest.raises(RequestError):
        SamplingParams().replace(top_p=2.0)


def test_errors_say_what_value_limit_and_remedy() -> None:
    error = OctavoError("block size", value=3, limit="a power of two", remedy="try 16")
    assert str(error) == "block size: got 3, expected a power of two; try 16"
    assert len(str(OctavoError("x", value="y" * 10_000))) < 200
    lied = ModelFileError("m.gguf", "tensor count", found=2**60, expected="at most 10")
    assert str(lied) == f"m.gguf: tensor count: got {2**60}, expected at most 10"


def test_status_and_code_of_request_errors() -> None:
    kinds = {
        RequestError: (400, "invalid_value"),
        ContextLengthError: (400, "context_length_exceeded"),
        CapacityError: (400, "kv_capacity_exceeded"),
        RequestTooLargeError: (413, "request_too_large"),
        ModelNotServedError: (404, "model_not_found"),
        QueueFullError: (429, "queue_full"),
    }
    for kind, (status, code) in kinds.items():
        error = kind("x", param="p")
        assert (error.status, error.code, error.param) == (status, code, "p")
