"""OpenAI chat messages → the plain dicts that templates read, every field checked."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.base.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content", "reasoning")
_INERT_WHEN_EMPTY = ("refusal", "annotations", "audio", "function_call")
_FIELDS = ("role", "content", "tool_calls", *_TEXT_FIELDS, *_INERT_WHEN_EMPTY)


def normalize_messages(messages: object) -> list[dict[str, Any]]:
    """Check the shape of `messages`; content becomes text, parts joined.

    Content that is null or absent is "" for an assistant (whose message may hold tool calls alone)
    and an error for any other role. Arguments of tool calls are parsed: templates want an object.
    Fields that a reply has and a request need not (`refusal`, `audio` …) are dropped when empty.
    Raises RequestError whose `param` is the path of the value, such as "messages[2].content".
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise _wrong("messages", messages, "a list of messages")
    if not messages:
        raise _wrong("messages", [], "at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(path, message, "an object with role and content")
    for name, value in message.items():
        if name not in _FIELDS:
            near = difflib.get_close_matches(str(name), _FIELDS, n=1)
            raise RequestError(
                f"{path} has an unknown field",
                param=f"{path}.{name}",
                value=name,
                limit=f"one of {', '.join(_FIELDS)}",
                remedy=f"did you mean {near[0]}?" if near else None,
            )
        if name in _INERT_WHEN_EMPTY and value:
            raise _wrong(f"{path}.{name}", value, "null")
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"{path}.role", role, f"one of {', '.join(ROLES)}")
    result: dict[str, Any] = {"role": role, "content": _content(message, role, f"{path}.content")}
    for name in _TEXT_FIELDS:
        value = message.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise _wrong(f"{path}.{name}", value, "a string")
            result[name] = value
    if message.get("tool_calls"):
        if role != "assistant":
            raise _wrong(f"{path}.tool_calls", f"role {role}", "tool calls of an assistant only")
        result["tool_calls"] = _tool_calls(message["tool_calls"], f"{path}.tool_calls")
    return result


def _content(message: Mapping[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        limit = "a string or a list of text parts"
        raise _wrong(path, "null" if content is None else content, limit)
    return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise _wrong(path, part, 'an object such as {"type": "text", "text": "…"}')
    if part.get("type") != "text":
        raise RequestError(
            f"{path}.type: this model takes text only",
            param=f"{path}.type",
            value=part.get("type"),
            limit="text",
        )
    unknown = [name for name in part if name not in ("type", "text")]
    if unknown:
        raise _wrong(f"{path}.{unknown[0]}", unknown[0], "type and text only")
    text = part.get("text")
    if not isinstance(text, str):
        raise _wrong(f"{path}.text", text, "a string")
    return text


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise _wrong(path, calls, "a list of tool calls")
    result = []
    for i, call in enumerate(calls):
        here = f"{path}[{i}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise _wrong(f"{here}.function", function, "an object with name and arguments")
        if not isinstance(function.get("name"), str):
            raise _wrong(f"{here}.function.name", function.get("name"), "a string")
        arguments = _arguments(function.get("arguments"), f"{here}.function.arguments")
        result.append(
            {"type": "function", **call, "function": {**function, "arguments": arguments}}
        )
    return result


def _arguments(arguments: object, path: str) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError):
            raise _wrong(path, arguments, "a JSON object") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise _wrong(path, arguments, "a JSON object")
    return arguments


def _wrong(path: str, value: object, limit: str) -> RequestError:
    return RequestError(path, param=path, value=value, limit=limit)
