"""What replies look like on the wire, OpenAI's objects as plain dictionaries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.base.outputs import CompletionOutput, Logprob
from octavo.server.requests import Generation


@dataclass
class Usage:
    """Token counts of a reply; several prompts add up."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cut: int = 0

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        if self.cut:
            body["prompt_tokens_details"]["truncated_tokens"] = self.cut
        return body


@dataclass
class Shape:
    """The fixed parts of one reply's objects."""

    generation: Generation
    reply_id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        chat = self.generation.chat
        name = (
            ("chat.completion.chunk" if chunk else "chat.completion")
            if chat
            else ("text_completion")
        )
        return {
            "id": self.reply_id,
            "object": name,
            "created": self.created,
            "model": self.generation.model,
            "choices": choices,
        }

    def whole(self, outputs: Sequence[CompletionOutput], usage: Usage) -> dict[str, Any]:
        """A reply that is not streamed."""
        choices = [self._choice(i, output) for i, output in enumerate(outputs)]
        return {**self.envelope(choices, chunk=False), "usage": usage.body()}

    def _choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if self.generation.chat:
            choice["message"] = {"role": "assistant", "content": output.text, "refusal": None}
        else:
            choice["text"] = output.text
        choice["logprobs"] = self._logprobs(output, 0)
        choice["finish_reason"] = output.finish_reason
        choice["stop_reason"] = output.stop_reason
        if self.generation.return_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def role_chunk(self) -> dict[str, Any]:
        """A chat stream's first chunk."""
        return self._chunk(0, {"delta": {"role": "assistant", "content": ""}})

    def text_chunk(self, index: int, output: CompletionOutput, offset: int) -> dict[str, Any]:
        """New text. offset: characters of this choice sent before."""
        new: dict[str, Any] = (
            {"delta": {"content": output.text}} if self.generation.chat else {"text": output.text}
        )
        if output.logprobs is not None:
            new["logprobs"] = self._logprobs(output, offset)
        if self.generation.return_token_ids:
            new["token_ids"] = output.token_ids
        return self._chunk(index, new)

    def finish_chunk(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """How a choice ended."""
        new: dict[str, Any] = {"delta": {}} if self.generation.chat else {"text": ""}
        new["finish_reason"] = output.finish_reason
        new["stop_reason"] = output.stop_reason
        return self._chunk(index, new)

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, on request: no choices, the counts."""
        return {**self.envelope([], chunk=True), "usage": usage.body()}

    def _chunk(self, index: int, new: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **new}
        body = self.envelope([choice], chunk=True)
        if self.generation.include_usage:
            body["usage"] = None
        return body

    def _logprobs(self, output: CompletionOutput, offset: int) -> dict[str, Any] | None:
        if output.logprobs is None:
            return None
        rows = list(zip(output.token_ids, output.logprobs, strict=True))
        if self.generation.chat:
            return {"content": [_chat_logprob(token, row) for token, row in rows]}
        return _completion_logprobs(rows, offset, self.generation.params.logprobs or 0)


def _named(item: Logprob) -> dict[str, Any]:
    text = item.decoded_token or ""
    return {"token": text, "logprob": item.logprob, "bytes": list(text.encode())}


def _chat_logprob(token: int, row: dict[int, Logprob]) -> dict[str, Any]:
    """The drawn token, then the most likely ones that were asked for."""
    others = sorted(row.items(), key=lambda item: item[1].rank or 0)
    asked = [item for other, item in others if other != token or item.rank == 1 or len(row) > 1]
    top = [_named(item) for item in asked] if len(row) > 1 else []
    return {**_named(row[token]), "top_logprobs": top}


def _completion_logprobs(
    rows: Sequence[tuple[int, dict[int, Logprob]]], offset: int, count: int
) -> dict[str, Any]:
    tokens = [row[token].decoded_token or "" for token, row in rows]
    offsets = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [row[token].logprob for token, row in rows],
        "top_logprobs": [
            {item.decoded_token or "": item.logprob for item in row.values()} for _, row in rows
        ]
        if count
        else None,
        "text_offset": offsets,
    }
