"""Chat messages → prompt text, by the model's own Jinja template.

The template is compiled once and rendered per request, with limits on time and size; see
`octavo.text.sandbox` for how they hold. jinja2 is imported when the first template is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.base.errors import OctavoError, RequestError, TemplateError
from octavo.text.budget import LimitError, RenderBudget
from octavo.text.messages import normalize_messages

__all__ = ["ChatTemplate", "normalize_messages"]

MAX_SOURCE_BYTES = 1 << 20
MAX_OUTPUT_CHARS = 8 << 20
TIME_LIMIT_S = 5.0
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


class ChatTemplate:
    """A compiled template. Safe to share between threads.

    source: Jinja source of at most 1 MiB; None or "" (a base model) is refused.
    bos_token, eos_token: their text, which templates write themselves; encode the result with
        `add_special_tokens=False`.
    time_limit_s, max_output_chars: bounds of one rendering. (Compiling runs none of the template;
        its time is bounded by the size of the syntax tree.)
    Raises TemplateError (`param` "messages") for a source that is missing, too large or wrong.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        max_output_chars: int = MAX_OUTPUT_CHARS,
    ) -> None:
        if not source:
            raise TemplateError(
                "this model has no chat template",
                param="messages",
                remedy="use /v1/completions, or pass --chat-template",
            )
        size = len(source.encode("utf-8", "replace"))
        if size > MAX_SOURCE_BYTES:
            raise TemplateError(
                "chat template source",
                param="messages",
                value=f"{size} bytes",
                limit=f"at most {MAX_SOURCE_BYTES} bytes",
            )
        from octavo.text.sandbox import ChatEnvironment

        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._time_limit_s = time_limit_s
        self._max_output = max_output_chars
        self._environment = ChatEnvironment()
        mark = self._environment.budget.set(self._budget())
        try:
            self._template = self._environment.from_string(source)
        except (Exception, MemoryError) as error:
            raise _failure("does not compile", error) from None
        finally:
            self._environment.budget.reset(mark)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages` (already normalised, or plain dicts of role and content).

        extra: further variables (`chat_template_kwargs`).
        Raises TemplateError (`param` "messages") for anything that fails or runs past a limit.
        """
        taken = sorted(_RESERVED.intersection(extra or ()))
        if taken:
            raise RequestError(
                "chat_template_kwargs",
                param="chat_template_kwargs",
                value=taken[0],
                limit=f"names other than {', '.join(sorted(_RESERVED))}",
            )
        variables = {
            **(extra or {}),
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        budget = self._budget()
        mark = self._environment.budget.set(budget)
        try:
            budget.admit(variables)
            return self._run(variables, budget)
        except OctavoError:
            raise
        except (Exception, MemoryError) as error:
            raise _failure("failed", error) from None
        finally:
            self._environment.budget.reset(mark)

    def _run(self, variables: dict[str, Any], budget: RenderBudget) -> str:
        chunks = []
        size = 0
        context = self._template.new_context(variables)
        for chunk in self._template.root_render_func(context):
            size = budget.check(size + len(chunk))
            chunks.append(chunk)
        return "".join(chunks)

    def _budget(self) -> RenderBudget:
        return RenderBudget(self._time_limit_s, self._max_output)


def _failure(what: str, error: BaseException) -> TemplateError:
    if isinstance(error, LimitError):
        reason = str(error)
    elif isinstance(error, RecursionError):
        reason = "it calls itself too deeply"
    else:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
    return TemplateError(f"chat template {what}: {reason}", param="messages")
