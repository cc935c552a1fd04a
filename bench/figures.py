"""What a request was, what came back when, and the figures made of it. No I/O.

Times are seconds on one clock. A server may put several tokens into one chunk (a part of a
character waits for its rest; an engine may make more than one token in a step), so nothing here
counts chunks as tokens: a chunk carries the number of its tokens where the server says it, and
where it does not, the request's total, which is always known, is spread evenly over its chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

# Figures of which less is better; of the others more is.
TIMES = ("load_s", "ttft_", "itl_", "longest_gap_")


@dataclass(frozen=True)
class Request:
    """A prompt of token ids and the exact number of tokens to make."""

    prompt: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Chunk:
    """A piece of a reply. tokens: how many it carries; None where the server does not say."""

    at_s: float
    tokens: int | None


@dataclass(frozen=True)
class Reply:
    """An answered request. tokens: all that were made; chunks: at least one, in order."""

    begun_s: float
    chunks: tuple[Chunk, ...]
    tokens: int
    prompt_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.chunks[0].at_s - self.begun_s

    @property
    def end_s(self) -> float:
        return self.chunks[-1].at_s

    def per_chunk(self) -> list[float]:
        """Tokens of each chunk: as the server said, or its share of the total."""
        said = [chunk.tokens for chunk in self.chunks]
        known = [count for count in said if count is not None]
        if len(known) == len(said) and sum(known) == self.tokens:
            return [float(count) for count in known]
        return [self.tokens / len(said)] * len(said)

    def gaps(self) -> list[tuple[float, float]]:
        """(seconds per token, tokens) of each chunk after the first, its gap divided evenly.

        Chunks without tokens hand their gap to the next one, so the sum over all is the time from
        the first chunk to the last.
        """
        found: list[tuple[float, float]] = []
        waited = 0.0
        for (before, _), (chunk, count) in pairwise(
            zip(self.chunks, self.per_chunk(), strict=True)
        ):
            waited += chunk.at_s - before.at_s
            if count:
                found.append((waited / count, count))
                waited = 0.0
        return found

    @property
    def itl_s(self) -> float:
        """Mean time per token after the first chunk's; 0 for a reply of one chunk."""
        later = sum(self.per_chunk()[1:])
        return (self.end_s - self.chunks[0].at_s) / later if later else 0.0

    @property
    def longest_gap_s(self) -> float:
        """The longest a reader waited between two chunks."""
        return max((b.at_s - a.at_s for a, b in pairwise(self.chunks)), default=0.0)


@dataclass(frozen=True)
class Limits:
    """What counts as good: the first token within ttft_s, then itl_s per token in the mean."""

    ttft_s: float = 1.0
    itl_s: float = 0.1

    def met(self, reply: Reply) -> bool:
        return reply.ttft_s <= self.ttft_s and reply.itl_s <= self.itl_s


def percentile(values: Iterable[float | tuple[float, float]], rank: float) -> float:
    """The value at `rank` percent, nearest-rank, of values or (value, weight); NaN of none."""
    pairs = sorted(item if isinstance(item, tuple) else (item, 1.0) for item in values)
    wanted = rank / 100 * sum(weight for _, weight in pairs) * (1 - 1e-12)
    passed = 0.0
    for value, weight in pairs:
        passed += weight
        if passed >= wanted:
            return value
    return float("nan")


def traffic_figures(
    replies: Sequence[Reply], failures: int, wall_s: float, limits: Limits
) -> dict[str, float]:
    """What users of a server saw. wall_s: from the first arrival to the last reply.

    Only what met the limits counts as goodput; a failed request never does. Times of which there is
    no sample are left out.
    """
    gaps = [gap for reply in replies for gap in reply.gaps()]
    samples: dict[str, list[float] | list[tuple[float, float]]] = {
        "ttft_ms": [1e3 * reply.ttft_s for reply in replies],
        "itl_ms": [(1e3 * gap_s, tokens) for gap_s, tokens in gaps],
        "longest_gap_ms": [1e3 * reply.longest_gap_s for reply in replies],
    }
    figures = {
        f"{name}_p{rank}": percentile(found, rank)
        for name, found in samples.items()
        for rank in (50, 99)
        if found
    }
    return figures | {
        "served_tok_per_s": sum(reply.tokens for reply in replies) / wall_s,
        "goodput_req_per_s": sum(map(limits.met, replies)) / wall_s,
        "good_percent": 100 * sum(map(limits.met, replies)) / max(1, len(replies) + failures),
        "failures": float(failures),
    }


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one figure."""

    low: float
    middle: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(min(values), median(values), max(values), len(values))

    def __str__(self) -> str:
        """min–median–max, with as many digits as the size deserves."""
        digits = 0 if self.middle >= 100 else 1 if self.middle >= 10 else 2
        return "–".join(f"{value:,.{digits}f}" for value in (self.low, self.middle, self.high))


def collect(runs: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Figure → its values over the runs that have it, in the order of first appearance."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.items():
            found.setdefault(name, []).append(value)
    return found


def times_better(name: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times as good the median of ours is: above 1 we are faster, whatever the figure."""
    mine, other = median(ours), median(theirs)
    over, under = (other, mine) if name.startswith(TIMES) else (mine, other)
    return over / under if under else float("nan")
