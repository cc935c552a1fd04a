"""The fields of each endpoint, in one table: supported, inert, or refused.

The tables are what requests are checked against, what an unknown field is compared with, and what
docs/server.md lists (a test holds the page to them).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.base.errors import RequestError

# Checked by SamplingParams, under the same names.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "bad_words",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "logit_bias",
    "allowed_token_ids",
)
COMPLETION = (
    "model",
    "prompt",
    "max_tokens",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "return_token_ids",
    "request_id",
    *SAMPLING,
)
CHAT = (
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
    "truncate_prompt_tokens",
    "return_token_ids",
    "request_id",
    *SAMPLING,
)
TOKENIZE = (
    "model",
    "prompt",
    "messages",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "return_token_strs",
)
DETOKENIZE = ("model", "tokens")

# Accepted and without effect here: name → the type it must have.
INERT: Mapping[str, type] = {
    "user": str,
    "metadata": dict,
    "store": bool,
    "service_tier": str,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "parallel_tool_calls": bool,
}


@dataclass(frozen=True)
class Refused:
    """A field that clients know and octavo does not implement: only `neutral` values pass."""

    why: str
    neutral: tuple[Any, ...] = ()


REFUSED: Mapping[str, Refused] = {
    "audio": Refused("audio is not supported"),
    "best_of": Refused("best_of is not supported"),
    "cache_salt": Refused("prefix caching is not there yet, so nothing is shared"),
    "documents": Refused("documents are not supported", ([],)),
    "echo": Refused("echo is not supported yet", (False,)),
    "function_call": Refused("functions are not supported yet", ("none",)),
    "functions": Refused("functions are not supported yet", ([],)),
    "guided_choice": Refused("structured output is not supported yet"),
    "guided_grammar": Refused("structured output is not supported yet"),
    "guided_json": Refused("structured output is not supported yet"),
    "guided_regex": Refused("structured output is not supported yet"),
    "length_penalty": Refused("beam search is not supported yet", (1.0, 1)),
    "modalities": Refused("only text is supported", (["text"],)),
    "prediction": Refused("predicted outputs are not supported"),
    "priority": Refused("priorities are not supported yet", (0,)),
    "prompt_embeds": Refused("prompt embeddings are not supported"),
    "prompt_logprobs": Refused("prompt_logprobs is not supported yet"),
    "reasoning_effort": Refused("no served model has reasoning levels"),
    "response_format": Refused("structured output is not supported yet", ({"type": "text"},)),
    "structured_outputs": Refused("structured output is not supported yet"),
    "suffix": Refused("suffix is not supported"),
    "tool_choice": Refused("tools are not supported yet", ("none", "auto")),
    "tools": Refused("tools are not supported yet", ([],)),
    "use_beam_search": Refused("beam search is not supported yet", (False,)),
    "verbosity": Refused("no served model has verbosity levels"),
    "web_search_options": Refused("web search is not supported"),
}


def known_fields(body: Any, supported: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The body's supported fields that are not null, and the inert ones that it carried.

    Raises RequestError for a body that is no object, an unknown or refused field, or an inert one
    of the wrong type.
    """
    if not isinstance(body, dict):
        raise RequestError("the body", value=body, limit="a JSON object")
    fields: dict[str, Any] = {}
    inert: list[str] = []
    for name, value in body.items():
        if name in supported:
            if value is not None:
                fields[name] = value
        elif name in INERT:
            _check_inert(name, value)
            inert.append(name)
        elif name in REFUSED:
            _check_refused(name, value)
        else:
            raise _unknown(name, supported)
    return fields, inert


def _check_inert(name: str, value: Any) -> None:
    kind = INERT[name]
    if value is not None and not isinstance(value, kind):
        words = {str: "a string", dict: "an object", bool: "true or false"}
        raise RequestError(name, param=name, value=value, limit=words[kind])


def _check_refused(name: str, value: Any) -> None:
    refused = REFUSED[name]
    neutral = any(type(value) is type(item) and value == item for item in refused.neutral)
    if value is None or neutral:
        return
    allowed = " or ".join(("null", *(repr(item) for item in refused.neutral)))
    raise RequestError(
        refused.why, param=name, code="unsupported_parameter", value=value, limit=allowed
    )


def _unknown(name: str, supported: tuple[str, ...]) -> RequestError:
    near = difflib.get_close_matches(name, (*supported, *INERT, *REFUSED), n=1)
    return RequestError(
        f"unknown field {name[:64]!r}",
        param=name[:64],
        code="unknown_parameter",
        remedy=f"did you mean {near[0]!r}?" if near else None,
    )


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field that is true or false."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(name, param=name, value=value, limit="true or false")
    return value


def whole(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A whole number in [low, high], or None if absent."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"a whole number in [{low}, {high}]"
        raise RequestError(name, param=name, value=value, limit=limit)
    return value


def text(fields: Mapping[str, Any], name: str, most: int) -> str | None:
    """A string that is not empty and at most `most` characters, or None if absent."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise RequestError(
            name, param=name, value=value, limit=f"a string of 1 to {most} characters"
        )
    return value
