"""The door: prompts to token ids, and parameters checked against the model before anything else."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.base.environment import read_environment
from octavo.base.errors import ConfigError, ContextLengthError, ModelFileError, RequestError
from octavo.base.sampling_params import SamplingParams
from octavo.config import EngineArgs
from octavo.sampling import bad_word_sequences
from octavo.text import (
    ChatTemplate,
    Tokenizer,
    TokenizerSource,
    load_tokenizer,
    normalize_messages,
)
from octavo.weights import open_checkpoint

# vLLM's: what of generation_config.json becomes a request's default.
_DEFAULTS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


class InputProcessor:
    """Encodes prompts and checks requests. Safe to share between threads.

    max_model_len, vocab_size: the engine's, set once it is ready; 0 before.
    default_params: SamplingParams fields that the model's generation_config.json sets.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        default_params: dict[str, Any] | None = None,
        max_model_len: int = 0,
        vocab_size: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.default_params = default_params or {}
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._template_source = chat_template or tokenizer.chat_template
        self._template: ChatTemplate | None = None
        self._lock = threading.Lock()

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a reply; those that the model's logits have."""
        return tuple(i for i in self.tokenizer.eos_ids if i < self.vocab_size)

    def encode(
        self,
        prompt: str | Sequence[int],
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
    ) -> list[int]:
        """Token ids of a text, or given ids checked. Raises RequestError (`param`)."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        else:
            ids = self._checked(prompt, param)
        if not ids:
            raise RequestError(param, param=param, value=prompt, limit="at least one token")
        return ids

    def _checked(self, prompt: Sequence[int], param: str) -> list[int]:
        limit = f"token ids in [0, {self.vocab_size})"
        if not isinstance(prompt, (list, tuple)):
            raise RequestError(
                param, param=param, value=prompt, limit="text or a list of token ids"
            )
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(param, param=param, value=token, limit=limit)
            if not 0 <= token < self.vocab_size:
                raise RequestError(param, param=param, value=token, limit=limit)
        return list(prompt)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
    ) -> tuple[str, list[int]]:
        """(prompt text, its ids) of a conversation by the model's template.

        continue_final_message: the reply goes on where the last message ends. Raises RequestError
        (`messages`, `tools`, …) and TemplateError.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message",
                param="continue_final_message",
                value=True,
                limit="false while add_generation_prompt is true",
            )
        normal = normalize_messages(messages)
        text = self.compile_template().render(
            normal,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            extra=chat_template_kwargs,
        )
        if continue_final_message:
            text = _cut_after(text, normal[-1].get("content"))
        ids = self.encode(text, add_special_tokens=add_special_tokens, param="messages")
        return text, ids

    def compile_template(self) -> ChatTemplate:
        """The chat template, compiled once. Raises TemplateError."""
        with self._lock:
            if self._template is None:
                tokenizer = self.tokenizer
                eos = tokenizer.eos_ids[0] if tokenizer.eos_ids else None
                self._template = ChatTemplate(
                    self._template_source,
                    bos_token=_piece(tokenizer, tokenizer.bos_id),
                    eos_token=_piece(tokenizer, eos),
                )
            return self._template

    def check(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, clamp: bool = False
    ) -> SamplingParams:
        """The request's parameters, settled: ids in the vocabulary, max_tokens within the context.

        max_tokens None stays: the scheduler knows what fits. clamp: a max_tokens that is too large
        becomes what fits the context; it is refused otherwise.
        Raises RequestError, ContextLengthError.
        """
        changes: dict[str, Any] = {}
        room = self._room(prompt_ids)
        for field in ("max_tokens", "min_tokens"):
            wanted = getattr(params, field)
            if wanted is not None and wanted > room:
                if clamp and field == "max_tokens":
                    changes["max_tokens"] = room
                    continue
                raise ContextLengthError(
                    f"the context is {self.max_model_len} tokens; the prompt has "
                    f"{len(prompt_ids)} and {field} is {wanted}",
                    param=field,
                    limit=f"{field} of at most {room} here",
                )
        params.check_vocab(self.vocab_size)
        if params.stop_strings and not params.detokenize:
            raise RequestError(
                "stop needs the reply's text, and detokenize is false",
                param="stop",
                remedy="use stop_token_ids",
            )
        self._check_allowed(params)
        if params.bad_words:
            changes["bad_words_token_ids"] = self._bad_words(params)
        return params.replace(**changes) if changes else params

    def _room(self, prompt_ids: Sequence[int]) -> int:
        """Tokens that a reply may have."""
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ContextLengthError(
                f"the context is {self.max_model_len} tokens and the prompt has {len(prompt_ids)}; "
                f"a reply needs at least one more",
                param="prompt",
                limit=f"a prompt of at most {self.max_model_len - 1} tokens",
            )
        return room

    def _check_allowed(self, params: SamplingParams) -> None:
        """Masks that leave nothing to draw are refused here rather than fail in a step."""
        allowed = params.allowed_token_ids
        if allowed is None or not params.min_tokens:
            return
        stops = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self.eos_ids)}
        if stops.issuperset(allowed):
            raise RequestError(
                "allowed_token_ids holds only stop ids, which min_tokens masks",
                param="allowed_token_ids",
                value=allowed,
            )

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        found = bad_word_sequences(
            params.bad_words or (),
            lambda text: self.tokenizer.encode(text, add_special_tokens=False),
        )
        found = [ids for ids in found if max(ids) < self.vocab_size]
        return (params.bad_words_token_ids or []) + found


def load_input_processor(args: EngineArgs, model_path: Path) -> InputProcessor:
    """The input processor of a model on disk; its bounds are set when the engine is ready.

    Raises ModelError subclasses, ConfigError for a --chat-template that can't be read.
    """
    checkpoint = open_checkpoint(model_path)
    generation = checkpoint.generation_config
    tokenizer = load_tokenizer(
        TokenizerSource(
            tokenizer_json=checkpoint.tokenizer_json,
            tokenizer_config=checkpoint.tokenizer_config,
            gguf=checkpoint.metadata if checkpoint.format == "gguf" else None,
            generation_config=generation,
            chat_template=checkpoint.chat_template,
            content_id=checkpoint.content_id,
            cache_dir=read_environment().cache_dir,
        )
    )
    defaults = {}
    if args.generation_config == "auto":
        defaults = {
            ours: generation[theirs]
            for theirs, ours in _DEFAULTS.items()
            if generation.get(theirs) is not None
        }
        try:
            SamplingParams(**defaults)
        except RequestError as error:
            raise ModelFileError(
                model_path / "generation_config.json",
                error.param or "content",
                found=error.value,
                expected=error.limit or "a value in bounds",
            ) from None
    door = InputProcessor(
        tokenizer, chat_template=_template_option(args.chat_template), default_params=defaults
    )
    if args.chat_template is not None:  # the user's own: wrong now is better than in each request
        try:
            door.compile_template()
        except RequestError as error:
            raise ConfigError(
                "--chat-template", limit=f"a template that compiles ({error})"
            ) from None
    return door


def _template_option(value: str | None) -> str | None:
    """--chat-template: the template itself if it looks like one, else a file's content."""
    if value is None or "{" in value or "\n" in value:
        return value
    try:
        return Path(value).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "--chat-template",
            value=value,
            limit="a readable file or a jinja template",
            remedy=str(error),
        ) from None


def prompt_bytes(ids: Sequence[int]) -> bytes:
    """Ids as the engine takes them: native int32."""
    return np.array(ids, np.int32).tobytes()


def _piece(tokenizer: Tokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.piece(token_id)


def _cut_after(text: str, content: object) -> str:
    """`text` up to the end of the last message's content, which templates may have stripped."""
    last = content.rstrip() if isinstance(content, str) else ""
    at = text.rfind(last) if last else -1
    if at < 0:
        raise RequestError(
            "continue_final_message",
            param="continue_final_message",
            value=True,
            limit="a last message whose text the template writes as it stands",
        )
    return text[: at + len(last)]
