"""octavo chat"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from octavo.base.errors import RequestError
from octavo.base.sampling_params import SamplingParams
from octavo.cli.bars import bars
from octavo.cli.parser import Arguments, options_of, sampling_of
from octavo.cli.session import Session, open_session
from octavo.config import EngineArgs

_HELP = "/reset forgets the conversation, /quit (or Ctrl-D) ends it; Ctrl-C stops a reply"


def run(options: Arguments) -> int:
    """Read a line, stream the reply, again. A piped input is answered line by line."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history for input())
    start: list[dict[str, Any]] = []
    if options.system:
        start.append({"role": "system", "content": options.system})
    with open_session(options_of(EngineArgs, options), bars()) as session:
        params = SamplingParams(**sampling_of(options, session.default_params))
        talking = sys.stdin.isatty()
        if talking:
            print(f"{options.model}. {_HELP}.", file=sys.stderr)
        messages = list(start)
        while True:
            try:
                line = input("> " if talking else "").strip()
            except EOFError:
                return 0
            if line == "/quit":
                return 0
            if line == "/reset":
                messages = list(start)
            elif line == "/help":
                print(_HELP, file=sys.stderr)
            elif line:
                messages.append({"role": "user", "content": line})
                _reply(session, messages, params)


def _reply(session: Session, messages: list[dict[str, Any]], params: SamplingParams) -> None:
    """Print one reply and add it to the conversation; a refused turn is taken back."""
    try:
        for text in session.stream_chat(messages, params):
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        pass  # the reply so far stays in the conversation
    except RequestError as error:
        if len(messages) == 1 or error.code == "chat_template_error":
            raise
        messages.pop()
        print(f"octavo: {error}; /reset forgets the conversation", file=sys.stderr)
        return
    print()
    messages.append({"role": "assistant", "content": session.last.text})
