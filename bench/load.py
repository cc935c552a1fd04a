"""Open-loop traffic against an OpenAI completions endpoint: what its users would see.

    python bench/load.py --base-url http://127.0.0.1:8000 --model smollm2-135m \
        --rate 4 --num-prompts 100

Arrivals are Poisson with a fixed seed and do not wait for replies, so a server that falls behind
shows it. Prompts are random token ids without a shared prefix; their lengths and those of the
replies are mixed, log-uniform. Reported: time to the first token (TTFT), time per token after it
(ITL, of every token of every reply), the longest wait inside each reply, throughput, and goodput:
replies per second whose first token came within --ttft-s and whose mean ITL is within --itl-ms.
The last line is JSON.

Fields that only some servers know go into --extra; octavo's are the default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from client import Completions, RequestFailed
from figures import Limits, Reply, Request, traffic_figures

# Ids below are left out: special tokens stand at the front of the usual vocabularies.
FIRST_ID = 300
OCTAVO_FIELDS = {"ignore_eos": True, "return_token_ids": True}


@dataclass(frozen=True)
class Traffic:
    """rate: requests per second. Lengths are log-uniform between the bounds (both included)."""

    rate: float = 2.0
    num_prompts: int = 60
    prompt_tokens: tuple[int, int] = (16, 512)
    reply_tokens: tuple[int, int] = (8, 192)
    vocab: int = 40000
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes, in seconds from the start."""

    at_s: float
    request: Request


def random_prompt(rng: random.Random, length: int, vocab: int) -> tuple[int, ...]:
    """Token ids that make sense to nobody and share no prefix."""
    return tuple(rng.randrange(FIRST_ID, vocab) for _ in range(length))


def schedule(traffic: Traffic, seed: int) -> list[Arrival]:
    """The same for the same seed, for every server. The first request comes at once."""
    rng = random.Random(seed)

    def length(bounds: tuple[int, int]) -> int:
        low, high = bounds
        return min(high, int(low * ((high + 1) / low) ** rng.random()))

    at_s, arrivals = 0.0, []
    for _ in range(traffic.num_prompts):
        prompt = random_prompt(rng, length(traffic.prompt_tokens), traffic.vocab)
        arrivals.append(Arrival(at_s, Request(prompt, length(traffic.reply_tokens))))
        at_s += rng.expovariate(traffic.rate)
    return arrivals


async def drive(
    server: Completions, arrivals: list[Arrival]
) -> tuple[list[Reply], list[str], float]:
    """Send every request at its time, whatever has become of those before it.

    Returns the replies, what went wrong with the others, and the seconds from the first arrival to
    the last reply.
    """
    start_s = time.perf_counter()

    async def one(arrival: Arrival) -> Reply | str:
        await asyncio.sleep(max(0.0, start_s + arrival.at_s - time.perf_counter()))
        try:
            return await server.complete(arrival.request)
        except RequestFailed as error:
            return str(error)

    done = await asyncio.gather(*map(one, arrivals))
    wall_s = time.perf_counter() - start_s
    replies = [item for item in done if isinstance(item, Reply)]
    return replies, [item for item in done if isinstance(item, str)], wall_s


def main() -> int:
    traffic = Traffic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="without /v1")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rate", type=float, default=traffic.rate, help="requests per second")
    parser.add_argument("--num-prompts", type=int, default=traffic.num_prompts)
    parser.add_argument("--vocab", type=int, default=traffic.vocab, help="ids below this are used")
    parser.add_argument("--ttft-s", type=float, default=traffic.limits.ttft_s)
    parser.add_argument("--itl-ms", type=float, default=1e3 * traffic.limits.itl_s)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--extra", type=json.loads, default=OCTAVO_FIELDS, help="JSON object")
    options = parser.parse_args()
    limits = Limits(options.ttft_s, options.itl_ms / 1e3)
    traffic = Traffic(options.rate, options.num_prompts, vocab=options.vocab, limits=limits)

    async def run() -> tuple[dict[str, Any], list[str]]:
        async with Completions(options.base_url, options.model, options.extra) as server:
            replies, failures, wall_s = await drive(server, schedule(traffic, options.seed))
        return traffic_figures(replies, len(failures), wall_s, limits), failures

    found, failures = asyncio.run(run())
    for name, value in found.items():
        print(f"{name:<20} {value:10.2f}")
    for failure in failures[:3]:
        print("failed:", failure, file=sys.stderr)
    print(json.dumps({"rate": options.rate, "num_prompts": options.num_prompts, **found}))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
