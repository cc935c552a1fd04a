"""What replies look like on the wire, OpenAI's objects as plain dictionaries."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.base.outputs import CompletionOutput, Logprob
from octavo.server.requests import Generation
from octavo.text import Tokenizer


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


class Shape:
    """One reply's objects: their fixed parts, and the log-probabilities of its choices."""

    def __init__(self, generation: Generation, reply_id: str, tokenizer: Tokenizer) -> None:
        self.generation = generation
        self.reply_id = reply_id
        self._created = int(time.time())
        self._names = TokenNames(tokenizer)
        skip = generation.params.skip_special_tokens
        self._offsets = [Offsets(tokenizer, skip) for _ in generation.prompts]

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        name = "text_completion"
        if self.generation.chat:
            name = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.reply_id,
            "object": name,
            "created": self._created,
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
        choice["logprobs"] = self._logprobs(index, output)
        choice["finish_reason"] = output.finish_reason
        choice["stop_reason"] = output.stop_reason
        if self.generation.return_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def role_chunk(self) -> dict[str, Any]:
        """A chat stream's first chunk."""
        return self._chunk(0, {"delta": {"role": "assistant", "content": ""}})

    def text_chunk(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """New text, with what belongs to its tokens."""
        chat = self.generation.chat
        new = {"delta": {"content": output.text}} if chat else {"text": output.text}
        return self._chunk(index, {**new, **self._of_tokens(index, output)})

    def finish_chunk(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """How a choice ended, with what belongs to last tokens that had no text."""
        new: dict[str, Any] = {"delta": {}} if self.generation.chat else {"text": ""}
        new["finish_reason"] = output.finish_reason
        new["stop_reason"] = output.stop_reason
        if not output.text:
            new |= self._of_tokens(index, output)
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

    def _of_tokens(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        new: dict[str, Any] = {}
        if output.token_ids and output.logprobs is not None:
            new["logprobs"] = self._logprobs(index, output)
        if output.token_ids and self.generation.return_token_ids:
            new["token_ids"] = output.token_ids
        return new

    def _logprobs(self, index: int, output: CompletionOutput) -> dict[str, Any] | None:
        if output.logprobs is None:
            return None
        names, rows = self._names, list(zip(output.token_ids, output.logprobs, strict=True))
        if self.generation.chat:
            return {"content": [names.chat(token, row) for token, row in rows]}
        wanted = bool(self.generation.params.logprobs)
        return {
            "tokens": [names.name(token) for token, _ in rows],
            "token_logprobs": [row[token].logprob for token, row in rows],
            "top_logprobs": [names.best(token, row) for token, row in rows] if wanted else None,
            "text_offset": [self._offsets[index].take(token) for token, _ in rows],
        }


class TokenNames:
    """How tokens are written in log-probabilities, and where their text begins.

    A token may be a part of a character. Its `bytes` are its own; its name is its text, or
    "bytes:\\xf0\\x9f" where it has none of its own, so that names of different parts differ.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def name(self, token: int) -> str:
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def raw(self, token: int) -> bytes:
        return self._tokenizer.bytes_of(token, skip_special_tokens=False)

    def chat(self, token: int, row: dict[int, Logprob]) -> dict[str, Any]:
        """The drawn token, and the most likely ones if any were asked for."""
        ranked = sorted(row.items(), key=lambda item: item[1].rank or 0)
        top = [self._named(other, item) for other, item in ranked] if len(row) > 1 else []
        return {**self._named(token, row[token]), "top_logprobs": top}

    def _named(self, token: int, item: Logprob) -> dict[str, Any]:
        raw = self.raw(token)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": item.logprob, "bytes": list(raw)}

    def best(self, token: int, row: dict[int, Logprob]) -> dict[str, float]:
        """Name → log-probability; the drawn token's own wins where two have one name."""
        named = {self.name(other): item.logprob for other, item in row.items()}
        return {**named, self.name(token): row[token].logprob}


class Offsets:
    """Characters of the reply's text that are complete before each of its tokens."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def take(self, token: int) -> int:
        """Where this token begins; tokens are taken in order."""
        begin = self._length
        raw = self._tokenizer.bytes_of(token, skip_special_tokens=self._skip)
        self._length += len(self._decoder.decode(raw))
        return begin
