"""What the engine counts: plain numbers, which the server renders for Prometheus.

All counters begin at 0 when the engine starts and only rise. A histogram has one count per bucket
(not cumulative), the last bucket is open.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

_SHORT_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.0,
    5.0,
)
_LONG_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_FIRST_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_STEP_MS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0)


class Histogram(msgspec.Struct):
    """counts[i]: observations in (bounds[i−1], bounds[i]]; counts[-1]: beyond the last bound."""

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class EngineCounters(msgspec.Struct):
    """Totals since the engine started.

    finished: accepted requests by finish reason ("stop", "length", "abort", "error").
    prompt_tokens: of accepted requests. generated_tokens: drawn, aborted requests' included.
    wasted_tokens: drawn for requests that were aborted.
    ttft_s, itl_s, e2e_s: from arrival to the first token, between tokens, from arrival to the end.
    queue_s: from arrival to the first step. step_ms: a step on the device; step_tokens: its tokens.
    """

    accepted: int = 0
    refused: int = 0
    finished: dict[str, int] = msgspec.field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )
    prompt_tokens: int = 0
    generated_tokens: int = 0
    wasted_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    failed_steps: int = 0
    ttft_s: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_FIRST_S))
    itl_s: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_SHORT_S))
    e2e_s: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_LONG_S))
    queue_s: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_FIRST_S))
    step_ms: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_STEP_MS))
    step_tokens: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_TOKENS))
