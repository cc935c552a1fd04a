"""octavo generate"""

from __future__ import annotations

import sys

import msgspec

from octavo.base.errors import ConfigError
from octavo.base.sampling_params import SamplingParams
from octavo.cli.bars import bars
from octavo.cli.parser import Arguments, options_of, sampling_of
from octavo.cli.session import open_session
from octavo.config import EngineArgs


def run(options: Arguments) -> int:
    """Print the reply as it comes, or one JSON object at the end."""
    prompt = options.prompt
    if prompt is None:
        if sys.stdin.isatty():
            raise ConfigError("--prompt is missing", remedy="or pipe the prompt in")
        prompt = sys.stdin.read()
    with open_session(options_of(EngineArgs, options), bars()) as session:
        params = SamplingParams(**sampling_of(options, session.default_params))
        if options.chat:
            message = {"role": "user", "content": prompt}
            reply = session.stream_chat([message], params)
        else:
            reply = session.stream(prompt, params)
        for text in reply:
            if not options.json:
                print(text, end="", flush=True)
        if not options.json:
            print()
            return 0
        last = session.last
        body = {
            "model": options.model,
            "prompt": prompt,
            "text": last.text,
            "token_ids": last.token_ids,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
            "usage": {
                "prompt_tokens": last.prompt_tokens,
                "completion_tokens": len(last.token_ids),
            },
        }
        print(msgspec.json.encode(body).decode())
    return 0
