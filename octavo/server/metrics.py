"""/metrics: the engine's counts in Prometheus' text format, under octavo's names.

Rendered from one snapshot of the engine, so that the numbers of a scrape belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from octavo.engine.messages import EngineInfo, EngineStats
from octavo.obs import Histogram


class _Once:
    """A collector of families that were made beforehand."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(
    up: bool,
    requests: Mapping[tuple[str, int], int],
    info: EngineInfo | None,
    stats: EngineStats | None,
) -> bytes:
    """The page. Without stats (the engine starts, or is dead) only what the server knows."""
    families: list[Metric] = [
        GaugeMetricFamily("octavo_up", "1 while the engine takes requests.", value=float(up)),
        _http(requests),
    ]
    if info is not None:
        labels = {
            "model": info.model,
            "backend": info.backend,
            "isa": info.isa or "",
            "family": info.family,
        }
        family = GaugeMetricFamily("octavo_engine_info", "What runs.", labels=list(labels))
        family.add_metric(list(labels.values()), 1.0)
        families.append(family)
    if stats is not None:
        families += [*_gauges(stats), *_counters(stats), *_histograms(stats)]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families))
    return bytes(generate_latest(registry))


def _http(requests: Mapping[tuple[str, int], int]) -> Metric:
    family = CounterMetricFamily(
        "octavo_http_requests", "HTTP requests by route and status.", labels=["route", "status"]
    )
    for (route, status), count in sorted(requests.items()):
        family.add_metric([route, str(status)], count)
    return family


def _gauges(stats: EngineStats) -> Iterable[Metric]:
    numbers = {
        "requests_running": ("Requests on a row.", stats.running),
        "requests_waiting": ("Requests in the queue.", stats.waiting),
        "kv_blocks": ("KV blocks in the pool.", stats.kv_blocks_total),
        "kv_blocks_used": ("KV blocks that requests hold.", stats.kv_blocks_used),
        "kv_blocks_peak": ("Most KV blocks ever held at once.", stats.kv_blocks_peak),
        "step_age_seconds": (
            "Age of the step that runs, 0 when idle.",
            stats.step_age_s or 0.0,
        ),
    }
    for name, (text, value) in numbers.items():
        yield GaugeMetricFamily(f"octavo_{name}", text, value=float(value))
    memory = GaugeMetricFamily(
        "octavo_engine_memory_bytes", "Memory of the engine's process.", labels=["kind"]
    )
    for kind, size in stats.memory.items():
        memory.add_metric([kind], float(size))
    yield memory


def _counters(stats: EngineStats) -> Iterable[Metric]:
    counters = stats.counters
    numbers = {
        "requests_accepted": ("Requests that the engine took.", counters.accepted),
        "requests_refused": ("Requests that the engine refused.", counters.refused),
        "prompt_tokens": ("Prompt tokens of accepted requests.", counters.prompt_tokens),
        "generated_tokens": ("Tokens drawn.", counters.generated_tokens),
        "wasted_tokens": ("Tokens drawn for requests that were aborted.", counters.wasted_tokens),
        "preemptions": ("Requests that gave their blocks back.", counters.preemptions),
        "steps": ("Steps.", counters.steps),
        "failed_steps": ("Steps that failed as a whole.", counters.failed_steps),
    }
    for name, (text, value) in numbers.items():
        yield CounterMetricFamily(f"octavo_{name}", text, value=float(value))
    finished = CounterMetricFamily(
        "octavo_requests_finished", "Accepted requests by how they ended.", labels=["reason"]
    )
    for reason, count in counters.finished.items():
        finished.add_metric([reason], float(count))
    yield finished


def _histograms(stats: EngineStats) -> Iterable[Metric]:
    counters = stats.counters
    named: dict[str, tuple[str, Histogram]] = {
        "time_to_first_token_seconds": ("Arrival to first token.", counters.ttft_s),
        "inter_token_latency_seconds": ("Between tokens of a request.", counters.itl_s),
        "e2e_request_latency_seconds": ("Arrival to the end.", counters.e2e_s),
        "request_queue_seconds": ("Arrival to first step.", counters.queue_s),
        "step_milliseconds": ("A step on the device.", counters.step_ms),
        "step_tokens": ("Tokens planned in a step.", counters.step_tokens),
    }
    for name, (text, histogram) in named.items():
        total, buckets = 0, []
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        family = HistogramMetricFamily(f"octavo_{name}", text)
        family.add_metric([], buckets, histogram.sum)
        yield family
