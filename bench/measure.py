"""The measurements of one started engine, the same for all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from client import RequestFailed
from engines.session import ServerSession
from figures import Reply, Request, traffic_figures
from load import random_prompt

if TYPE_CHECKING:
    from engines.api import Session, Setting

# (prompt tokens, reply tokens)
DECODE = (128, 128)
PROMPT = (512, 2)
STREAMS = 32
EACH = (128, 128)


def measure(session: Session, setting: Setting, seed: int) -> dict[str, float]:
    """Warm up, measure what was asked for, close."""
    rng = random.Random(seed)

    def ask(count: int, lengths: tuple[int, int]) -> list[Reply]:
        prompts = [random_prompt(rng, lengths[0], setting.traffic.vocab) for _ in range(count)]
        return session.complete([Request(prompt, lengths[1]) for prompt in prompts])

    try:
        figures: dict[str, float] = {}
        ask(1, (PROMPT[0], 16))  # not counted
        if "latency" in setting.only:
            figures["load_s"] = session.load_s
            figures["decode_tok_per_s"] = decode_rate(ask(1, DECODE)[0])
            figures["prompt_tok_per_s"] = PROMPT[0] / ask(1, PROMPT)[0].ttft_s
        if "throughput" in setting.only:
            ask(STREAMS, (16, 8))  # not counted: a first wide step
            figures["streams_tok_per_s"] = together_rate(ask(STREAMS, EACH))
        if "served" in setting.only and isinstance(session, ServerSession):
            replies, failures, wall_s = session.serve(setting.traffic, seed)
            limits = setting.traffic.limits
            figures |= traffic_figures(replies, len(failures), wall_s, limits)
        return figures
    finally:
        session.close()


def decode_rate(reply: Reply) -> float:
    """Tokens per second after the first. Raises RequestFailed if all came at once."""
    if not reply.itl_s:
        raise RequestFailed("all tokens came at once, so that decoding has no time of its own")
    return 1 / reply.itl_s


def together_rate(replies: Sequence[Reply]) -> float:
    """Generated tokens per second of all, from the first request to the last token."""
    wall_s = max(reply.end_s for reply in replies) - min(reply.begun_s for reply in replies)
    return sum(reply.tokens for reply in replies) / wall_s
