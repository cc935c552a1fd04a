"""The loop of an in-process engine: a line of requests in, a line of token times out.

    → [{"prompt": [ids], "tokens": n}, …]
    ← {"begun_s": t, "token_s": [[t of each token], …]}

Runs in the engine's own environment, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# prompts, tokens to make of each → the time of every token of every reply
Generate = Callable[[list[list[int]], int], list[list[float]]]


def work(load: Callable[[], Generate]) -> None:
    """Load the engine, then answer until the input ends. One batch has one reply length."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to the log
    generate = load()
    for line in sys.stdin:
        batch: list[dict[str, Any]] = json.loads(line)
        (tokens,) = {item["tokens"] for item in batch}
        begun_s = time.perf_counter()
        times = generate([item["prompt"] for item in batch], tokens)
        print(json.dumps({"begun_s": begun_s, "token_s": times}), file=answers, flush=True)
