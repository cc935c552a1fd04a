"""`LLM`: a model in a script, with vLLM's names. The engine runs inside the script's process."""

from __future__ import annotations

import difflib
import os
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from itertools import count, islice
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeAlias, cast

from octavo.base.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    RequestError,
)
from octavo.base.outputs import RequestOutput
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.client.inputs import load_input_processor, prompt_bytes
from octavo.client.outputs import OutputProcessor, RequestState
from octavo.client.start import engine_handle, locate, show_phase, token_table
from octavo.config import EngineArgs, read_environment, with_environment
from octavo.engine.handle import EngineHandle
from octavo.engine.messages import (
    Abort,
    AddRequest,
    Dead,
    EngineInfo,
    EngineStats,
    FromEngine,
    GetStats,
    Outputs,
    Ready,
    Refused,
    Starting,
    refusal_error,
)
from octavo.text import Tokenizer
from octavo.weights import Progress

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model, ready to generate. Keyword arguments are the fields of `EngineArgs`.

    in_process: False runs the engine in a process of its own. progress: draws the start.
    Raises OctavoError subclasses when the model or the configuration is wrong. Not safe to share
    between threads. Closed by `close`, by `with`, or when it is collected.
    """

    def __init__(
        self,
        model: str = EngineArgs.model,
        *,
        in_process: bool = True,
        progress: Progress | None = None,
        check: bool = False,
        **options: Any,
    ) -> None:
        self.args = with_environment(_engine_args(model, options), read_environment())
        self._messages: SimpleQueue[FromEngine] = SimpleQueue()
        self._outputs = OutputProcessor()
        self._numbers = count()
        self._name = uuid.uuid4().hex[:8]
        self._table_sent = False
        self._dead: str | None = None
        self._pid = os.getpid()
        path = locate(self.args, progress)
        self._handle = engine_handle(
            self.args, path, self._messages.put, in_process=in_process, check=check
        )
        self._close = weakref.finalize(self, _close, self._handle)
        try:
            with ThreadPoolExecutor(1) as pool:
                loading = pool.submit(load_input_processor, self.args, path)
                self.info = self._wait_ready(progress)
                self.input = loading.result()
        except BaseException:
            self._close()
            raise
        self.input.max_model_len = self.info.max_model_len
        self.input.vocab_size = self.info.vocab_size

    def _wait_ready(self, progress: Progress | None) -> EngineInfo:
        while True:
            message = self._messages.get()
            if isinstance(message, Ready):
                return message.info
            if isinstance(message, Starting):
                show_phase(progress, message)
            elif isinstance(message, Dead):
                self._dead = message.cause
                raise EngineStartError(f"the engine did not start: {message.cause}")

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine and give its memory back. Safe to call twice."""
        self._dead = self._dead or "it was closed"
        self._close()

    def get_tokenizer(self) -> Tokenizer:
        return self.input.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (generation_config.json) over vLLM's."""
        return SamplingParams(**self.input.default_params)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts, batched; outputs are in the order of the prompts.

        prompts: a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, or a list of
            them. sampling_params: one for all, or one per prompt.
        use_tqdm: draw a progress bar (on a terminal only).
        Raises RequestError when any prompt is wrong, before any is computed.
        """
        encoded = [self._encode(prompt) for prompt in _as_list(prompts)]
        return self._run(encoded, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, by the model's chat template."""
        encoded = [
            self.input.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in _as_conversations(messages)
        ]
        return self._run(list(encoded), sampling_params, use_tqdm)

    def stats(self) -> EngineStats:
        """A snapshot of the engine's counters."""
        self._handle.send(GetStats(next(self._numbers)))
        while True:
            message = self._next()
            if isinstance(message, EngineStats):
                return message

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            known = {"prompt", "prompt_token_ids"}
            if not known & set(prompt) or set(prompt) - known:
                raise RequestError(
                    "prompt",
                    param="prompt",
                    value=sorted(prompt),
                    limit="prompt or prompt_token_ids",
                )
            text = prompt.get("prompt")
            ids = prompt.get("prompt_token_ids")
            return text, self.input.encode(prompt["prompt"] if ids is None else ids)
        text = prompt if isinstance(prompt, str) else None
        return text, self.input.encode(prompt)

    def _run(
        self, encoded: list[tuple[str | None, list[int]]], params: Params, use_tqdm: bool
    ) -> list[RequestOutput]:
        if self._dead is not None:
            raise EngineDeadError(f"the engine is dead: {self._dead}")
        each = self._params_for(encoded, params)
        states = [self._state(text, ids, p) for (text, ids), p in zip(encoded, each, strict=True)]
        try:
            with _progress_bar(use_tqdm, len(states)) as advance:
                return self._drive(states, advance)
        finally:
            left = self._outputs.keys()
            if left:
                for key in left:
                    self._outputs.remove(key)
                self._handle.send(Abort(left))

    def _params_for(
        self, encoded: list[tuple[str | None, list[int]]], params: Params
    ) -> list[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        each = [params] * len(encoded) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(encoded):
            raise RequestError(
                "sampling_params",
                param="sampling_params",
                value=f"{len(each)} for {len(encoded)} prompts",
                limit="one, or as many as there are prompts",
            )
        return [
            self.input.check(ids, p, clamp=True).replace(output_kind=RequestOutputKind.FINAL_ONLY)
            for (_, ids), p in zip(encoded, each, strict=True)
        ]

    def _state(self, text: str | None, ids: list[int], params: SamplingParams) -> RequestState:
        request_id = f"{self._name}-{next(self._numbers)}"
        tokenizer = self.input.tokenizer
        return RequestState(request_id, text, ids, params, tokenizer, time.monotonic())

    def _drive(
        self, states: list[RequestState], advance: Callable[[], None]
    ) -> list[RequestOutput]:
        """Keep the engine's queue filled until all are done."""
        room = self.args.max_num_queued_reqs
        waiting = iter(states)
        for state in islice(waiting, room):
            self._add(state)
        results: dict[str, RequestOutput] = {}
        while len(results) < len(states):
            message = self._next()
            if isinstance(message, Refused):
                if message.request_id in self._outputs:
                    raise refusal_error(message)
            elif isinstance(message, Outputs):
                for delta in message.deltas:
                    ended = self._outputs.push(delta)
                    if ended is None or not ended.done:
                        continue
                    if ended.cut:
                        self._handle.send(Abort([ended.key]))
                    output = ended.output()
                    assert output is not None
                    results[ended.request_id] = output
                    advance()
                    for following in islice(waiting, 1):
                        self._add(following)
        return [results[state.request_id] for state in states]

    def _add(self, state: RequestState) -> None:
        params = state.params
        if params.stop_strings and not self._table_sent:
            self._handle.send(token_table(self.input.tokenizer))
            self._table_sent = True
        self._outputs.add(state)
        eos_ids = () if params.ignore_eos else self.input.eos_ids
        prompt = prompt_bytes(state.prompt_ids)
        self._handle.send(AddRequest(state.key, prompt, params, eos_ids, state.arrival_s))

    def _next(self) -> FromEngine:
        if os.getpid() != self._pid:
            raise EngineError(
                "the engine's threads did not follow a fork; make an LLM in the child"
            )
        if self._dead is not None:
            raise EngineDeadError(f"the engine is dead: {self._dead}")
        message = self._messages.get()
        if isinstance(message, Dead):
            self._dead = message.cause
            raise EngineDeadError(f"the engine died: {message.cause}")
        return message


def _close(handle: EngineHandle) -> None:
    handle.close()


def _engine_args(model: str, options: dict[str, Any]) -> EngineArgs:
    known = [item.name for item in fields(EngineArgs)]
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"LLM has no option {name!r}", remedy=f"did you mean {near[0]}?" if near else None
            )
        if isinstance(value, list):
            options[name] = tuple(value)
    return EngineArgs(model=model, **options)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several: a list of ints is one prompt of token ids."""
    if not isinstance(prompts, (str, Mapping, Sequence)):
        limit = "a text, token ids, a dict, or a list of these"
        raise RequestError("prompts", param="prompts", value=prompts, limit=limit)
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast("list[int]", list(prompts))]
    return cast("list[Prompt]", list(prompts))


def _as_conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    if messages and not isinstance(messages[0], Mapping):
        return cast("list[Messages]", list(messages))
    return [cast("Messages", messages)]


@contextmanager
def _progress_bar(wanted: bool, total: int) -> Iterator[Callable[[], None]]:
    """Yields what to call when a request is done; draws only on a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=total)
        yield lambda: bar.advance(task)
