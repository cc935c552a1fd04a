"""Request bodies to what the client takes: model, prompts, sampling parameters, options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.base.errors import ContextLengthError, ModelNotServedError, RequestError
from octavo.base.sampling_params import MAX_LOGPROBS, RequestOutputKind, SamplingParams
from octavo.client import InputProcessor
from octavo.server import fields as f

MOST_PROMPTS = 128
_MOST_TOKENS = 2**31 - 1
_DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions
_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids. cut: tokens dropped from its front on request."""

    ids: list[int]
    text: str | None
    cut: int = 0


@dataclass(frozen=True)
class Generation:
    """A checked request for one or more replies."""

    model: str
    prompts: list[Prompt]
    params: SamplingParams
    stream: bool
    include_usage: bool
    return_token_ids: bool
    request_id: str | None
    inert: tuple[str, ...]
    chat: bool


def parse_completion(body: Any, served: Sequence[str], door: InputProcessor) -> Generation:
    """Check a /v1/completions body. Raises RequestError naming the field."""
    given, inert = f.known_fields(body, f.COMPLETION)
    model = check_model(given, served)
    special = f.flag(given, "add_special_tokens", True)
    prompts = [
        _cut(given, Prompt(door.encode(item, add_special_tokens=special), _text(item)))
        for item in _prompt_list(given)
    ]
    changes: dict[str, Any] = {"logprobs": f.whole(given, "logprobs", 0, MAX_LOGPROBS)}
    # The default never makes a prompt too long: it shrinks to the room that is left.
    room = door.max_model_len - max(len(prompt.ids) for prompt in prompts)
    default = min(_DEFAULT_MAX_TOKENS, max(1, room))
    changes["max_tokens"] = f.whole(given, "max_tokens", 1, _MOST_TOKENS) or default
    return _generation(given, inert, model, prompts, changes, door, chat=False)


def parse_chat(body: Any, served: Sequence[str], door: InputProcessor) -> Generation:
    """Check a /v1/chat/completions body. Raises RequestError naming the field."""
    given, inert = f.known_fields(body, f.CHAT)
    model = check_model(given, served)
    prompt = _cut(given, _chat_prompt(given, door))
    changes: dict[str, Any] = {"logprobs": _chat_logprobs(given)}
    changes["max_tokens"] = _chat_max_tokens(given)
    return _generation(given, inert, model, [prompt], changes, door, chat=True)


def parse_tokenize(body: Any, served: Sequence[str], door: InputProcessor) -> tuple[Prompt, bool]:
    """Check a /tokenize body: a prompt or messages. Returns the prompt and return_token_strs."""
    given, _ = f.known_fields(body, f.TOKENIZE)
    check_model(given, served, required=False)
    strings = f.flag(given, "return_token_strs", False)
    if "messages" in given:
        if "prompt" in given:
            raise RequestError("prompt and messages are both given", param="messages")
        return _chat_prompt(given, door), strings
    prompt = given.get("prompt")
    if not isinstance(prompt, str):
        raise RequestError("prompt", param="prompt", value=prompt, limit="a string")
    special = f.flag(given, "add_special_tokens", True)
    ids = door.encode(prompt, add_special_tokens=special) if prompt else []
    return Prompt(ids, prompt), strings


def parse_detokenize(body: Any, served: Sequence[str], door: InputProcessor) -> list[int]:
    """Check a /detokenize body."""
    given, _ = f.known_fields(body, f.DETOKENIZE)
    check_model(given, served, required=False)
    tokens = given.get("tokens")
    if not isinstance(tokens, list):
        raise RequestError("tokens", param="tokens", value=tokens, limit="a list of token ids")
    return door.encode(tokens, param="tokens") if tokens else []


def check_model(given: Mapping[str, Any], served: Sequence[str], *, required: bool = True) -> str:
    """The request's model, if it is served here. Raises ModelNotServedError (404)."""
    model = given.get("model")
    if model is None:
        if required:
            raise RequestError("model is missing", param="model", limit=f"{served[0]!r}")
        return served[0]
    if not isinstance(model, str):
        raise RequestError("model", param="model", value=model, limit="a string")
    if model not in served:
        limit = " or ".join(repr(name) for name in served)
        raise ModelNotServedError("no such model here", param="model", value=model, limit=limit)
    return model


def _generation(
    given: Mapping[str, Any],
    inert: list[str],
    model: str,
    prompts: list[Prompt],
    changes: dict[str, Any],
    door: InputProcessor,
    *,
    chat: bool,
) -> Generation:
    stream = f.flag(given, "stream", False)
    include_usage = _include_usage(given, stream)
    sampling = {name: given[name] for name in f.SAMPLING if name in given}
    if "logit_bias" in sampling:
        sampling["logit_bias"] = _logit_bias(sampling["logit_bias"])
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    n = f.whole(given, "n", 1, 1)
    merged = {**door.default_params, **sampling, **changes, "output_kind": kind, "n": n or 1}
    params = SamplingParams(**merged)
    # Every prompt is checked before the first is sent.
    for prompt in prompts:
        try:
            door.check(prompt.ids, params)
        except ContextLengthError as error:
            if chat and error.param == "prompt":
                error.param = "messages"
            raise
    request_id = given.get("request_id")
    if request_id is not None and not valid_id(request_id):
        limit = "1 to 128 visible ASCII characters"
        raise RequestError("request_id", param="request_id", value=request_id, limit=limit)
    return Generation(
        model=model,
        prompts=prompts,
        params=params,
        stream=stream,
        include_usage=include_usage,
        return_token_ids=f.flag(given, "return_token_ids", False),
        request_id=request_id,
        inert=tuple(inert),
        chat=chat,
    )


def valid_id(value: object) -> bool:
    """Whether a request id from outside may go into headers and logs."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _include_usage(given: Mapping[str, Any], stream: bool) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        limit = "an object, with stream true"
        raise RequestError("stream_options", param="stream_options", value=options, limit=limit)
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise RequestError(
                f"unknown field stream_options.{name[:64]}",
                param="stream_options",
                code="unknown_parameter",
                limit="include_usage",
            )
    present = {name: value for name, value in options.items() if value is not None}
    if f.flag(present, "include_obfuscation", False):
        raise RequestError(
            "stream_options.include_obfuscation is not supported",
            param="stream_options",
            value=True,
            limit="false",
        )
    return f.flag(present, "include_usage", False)


def _prompt_list(given: Mapping[str, Any]) -> list[str | list[int]]:
    """One prompt or several: a string, a list of strings, of ids, or of lists of ids."""
    prompt = given.get("prompt")
    limit = "a string, a list of strings, or token ids"
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError("prompt", param="prompt", value=prompt, limit=limit)
    if all(isinstance(item, int) for item in prompt):
        return [prompt]
    if len(prompt) > MOST_PROMPTS:
        found = f"{len(prompt)} prompts"
        raise RequestError(
            "prompt", param="prompt", value=found, limit=f"at most {MOST_PROMPTS} prompts"
        )
    for item in prompt:
        if not isinstance(item, (str, list)):
            raise RequestError("prompt", param="prompt", value=item, limit=limit)
    return prompt


def _text(item: str | list[int]) -> str | None:
    return item if isinstance(item, str) else None


def _chat_prompt(given: Mapping[str, Any], door: InputProcessor) -> Prompt:
    messages = given.get("messages")
    if not isinstance(messages, list):
        raise RequestError("messages", param="messages", value=messages, limit="a list of messages")
    kwargs = given.get("chat_template_kwargs")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise RequestError(
            "chat_template_kwargs", param="chat_template_kwargs", value=kwargs, limit="an object"
        )
    continued = f.flag(given, "continue_final_message", False)
    text, ids = door.encode_chat(
        messages,
        add_generation_prompt=f.flag(given, "add_generation_prompt", not continued),
        continue_final_message=continued,
        chat_template_kwargs=kwargs,
        add_special_tokens=f.flag(given, "add_special_tokens", False),
    )
    return Prompt(ids, text)


def _cut(given: Mapping[str, Any], prompt: Prompt) -> Prompt:
    keep = f.whole(given, "truncate_prompt_tokens", 1, _MOST_TOKENS)
    if keep is None or len(prompt.ids) <= keep:
        return prompt
    return Prompt(prompt.ids[-keep:], None, cut=len(prompt.ids) - keep)


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    wanted = f.flag(given, "logprobs", False)
    top = f.whole(given, "top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise RequestError(
            "top_logprobs needs logprobs", param="top_logprobs", value=top, limit="logprobs true"
        )
    return (top or 0) if wanted else None


def _chat_max_tokens(given: Mapping[str, Any]) -> int | None:
    old = f.whole(given, "max_tokens", 1, _MOST_TOKENS)
    new = f.whole(given, "max_completion_tokens", 1, _MOST_TOKENS)
    if old is not None and new is not None and old != new:
        raise RequestError(
            "max_tokens and max_completion_tokens differ",
            param="max_tokens",
            value=old,
            limit=f"{new}, or only one of them",
        )
    return new if new is not None else old


def _logit_bias(value: Any) -> Any:
    """Keys are token ids as strings, as JSON has it."""
    if not isinstance(value, dict):
        return value  # SamplingParams says what it must be
    bias: dict[int, Any] = {}
    for key, amount in value.items():
        if not re.fullmatch(r"[0-9]{1,10}", key):
            limit = "token ids of 0 or more as keys"
            raise RequestError("logit_bias", param="logit_bias", value=key, limit=limit)
        bias[int(key)] = amount
    return bias
