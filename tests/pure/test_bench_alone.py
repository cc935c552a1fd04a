"""The report of `make bench`: shares of the ceilings, medians and gains are worked out right."""

from __future__ import annotations

from typing import Any

from alone import to_markdown, to_svg


def run(value: float) -> dict[str, dict[str, float]]:
    names = ("decode_tok_per_s", "prompt_tok_per_s", "generated_tok_per_s")
    return {name: {"min": value, "median": value, "max": value} for name in names}


def report() -> dict[str, Any]:
    step = {
        "shape": {"rows": 2, "tokens": 3, "context": 7},
        "forward_s": 0.15,
        "sample_s": 0.05,
        "stages": {"attention": 0.1, "linear up": 0.02},
        "linear_ops": 50_000,
    }
    ops = {
        "ceilings": {"read_bytes_per_s": 4000.0, "int8_ops_per_s": 1e6},
        "weight_bytes": 400,
        "steps": [step],
    }
    results = {name: {"1": [run(10), run(30), run(20)], "2": [run(35), run(36), run(34)]}
               for name in ("latency", "prompt", "throughput")}  # fmt: skip
    results |= {"ops": {"1": ops, "2": ops}, "loop": {"step_cpu_us": {"64": {"median": 321.4}}}}
    return {"model": "m", "date": "d", "machine": "2 cores", "threads": [1, 2], "results": results}


def test_the_tables_say_medians_gains_and_shares() -> None:
    text = to_markdown(report())
    assert "| one stream, tok/s | 20 (10–30) | 35 (34–36) | 1.75× |" in text
    # 400 bytes in 0.2 s of 4000 per second; 50,000 operations of a million per second.
    assert "| 2 × 3 @ 7 | 200.0 | 30 | 50% | 25% | attention 100.0, linear up 20.0 |" in text
    assert "64: 321 µs" in text


def test_the_plot_has_a_bar_for_every_figure_and_thread_count() -> None:
    assert to_svg(report()).count("<rect") == 1 + 3 * 2
