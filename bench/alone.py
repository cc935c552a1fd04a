"""octavo alone: kernels beside the machine's ceilings, one stream and many, one thread and all.

    make bench        (python bench/alone.py [--model M] [--runs 3] [--out build/bench])

Runs `octavo bench ops`, `latency`, `throughput` and `loop` and bench/footprint.py, each in a
process of its own, thread counts in turn. Written under --out: octavo.json (every result as
printed), octavo.md (tables) and octavo.svg (the plot).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Found = dict[str, Any]
FIGURES = {
    "one stream, tok/s": ("latency", "decode_tok_per_s"),
    "prompt 512, tok/s": ("prompt", "prompt_tok_per_s"),
    "32 streams, tok/s": ("throughput", "generated_tok_per_s"),
}


def last_json(command: Sequence[str]) -> Found:
    """What a command prints as its last line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def octavo(model: str, kind: str, threads: int, *more: str) -> Found:
    command = [sys.executable, "-m", "octavo", "bench", kind, model, "--threads", str(threads)]
    print(f"[{time.strftime('%H:%M:%S')}] {kind}, {threads} threads", file=sys.stderr)
    return last_json([*command, *more])


def measure(model: str, runs: int, counts: Sequence[int]) -> Found:
    """Every result by name and threads; thread counts take turns."""
    results: Found = {
        name: {str(t): [] for t in counts} for name in ("latency", "prompt", "throughput")
    }
    once = ("--num-iters", "1")
    for _ in range(runs):
        for threads in counts:
            for name, found in (
                ("latency", octavo(model, "latency", threads, *once)),
                ("prompt", octavo(model, "latency", threads, *once, "--input-len", "512",
                                  "--output-len", "2")),
                ("throughput", octavo(model, "throughput", threads, *once)),
            ):  # fmt: skip
                results[name][str(threads)].append(found["results"])
    results["ops"] = {str(t): octavo(model, "ops", t) for t in counts}
    results["loop"] = octavo(model, "loop", counts[-1])
    print(f"[{time.strftime('%H:%M:%S')}] footprint", file=sys.stderr)
    script = str(Path(__file__).parent / "footprint.py")
    results["footprint"] = last_json([sys.executable, script, model])
    return results


def values(results: Mapping[str, Any], figure: str, threads: str) -> list[float]:
    name, key = FIGURES[figure]
    return [run[key]["median"] for run in results[name][threads]]


def spread(found: Sequence[float]) -> str:
    return f"{median(found):,.0f} ({min(found):,.0f}–{max(found):,.0f})"


def to_markdown(report: Mapping[str, Any]) -> str:
    results, counts = report["results"], [str(t) for t in report["threads"]]
    lines = [f"{report['model']}, {report['date']}, {report['machine']}", ""]
    lines += ["| | " + " | ".join(f"{t} threads" for t in counts) + " | gain |"]
    lines += ["|---" * (len(counts) + 2) + "|"]
    for figure in FIGURES:
        cells = [values(results, figure, t) for t in counts]
        gain = median(cells[-1]) / median(cells[0])
        lines.append(f"| {figure} | " + " | ".join(map(spread, cells)) + f" | {gain:.2f}× |")
    ops = results["ops"][counts[-1]]
    ceilings = ops["ceilings"]
    lines += [
        "",
        f"Ceilings in the same run, {counts[-1]} threads: memory "
        f"{ceilings['read_bytes_per_s'] / 1e9:.1f} GB/s over {ops['weight_bytes'] / 1e6:.0f} MB, "
        f"int8 {ceilings['int8_ops_per_s'] / 1e12:.2f} TOPS.",
        "",
        "| step (rows × tokens @ context) | ms | tok/s | of memory | of int8 | longest stages |",
        "|---|---|---|---|---|---|",
    ]
    for step in ops["steps"]:
        shape, total = step["shape"], step["forward_s"] + step["sample_s"]
        stages = sorted(step["stages"].items(), key=lambda item: -item[1])[:3]
        lines.append(
            f"| {shape['rows']} × {shape['tokens']} @ {shape['context']} | {1e3 * total:.1f} "
            f"| {shape['rows'] * shape['tokens'] / total:,.0f} "
            f"| {ops['weight_bytes'] / total / ceilings['read_bytes_per_s']:.0%} "
            f"| {step['linear_ops'] / total / ceilings['int8_ops_per_s']:.0%} "
            f"| {', '.join(f'{name} {1e3 * s:.1f}' for name, s in stages)} |"
        )
    python = (f"{n}: {f['median']:.0f} µs" for n, f in results["loop"]["step_cpu_us"].items())
    lines += ["", f"Python's CPU time per step, by rows: {', '.join(python)}"]
    return "\n".join(lines) + "\n"


def to_svg(report: Mapping[str, Any]) -> str:
    """Bars of every figure, a bar per thread count, as shares of the largest."""
    counts = [str(t) for t in report["threads"]]
    row, left, width = 20, 190, 620
    height = 50 + len(FIGURES) * (row * len(counts) + 12)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="14">octavo, {report["model"]}, {report["date"]}</text>',
    ]
    y = 40
    for figure in FIGURES:
        found = {t: values(report["results"], figure, t) for t in counts}
        scale = (width - left - 90) / max(max(v) for v in found.values())
        for t, v in found.items():
            out.append(
                f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{figure}, {t} thr.</text>'
                f'<rect x="{left}" y="{y + 3}" width="{median(v) * scale:.1f}" height="14" '
                f'fill="#1f6feb"/><path d="M{left + min(v) * scale:.1f} {y + 10}'
                f'H{left + max(v) * scale:.1f}" stroke="black"/>'
                f'<text x="{left + max(v) * scale + 6:.1f}" y="{y + 14}">{median(v):,.0f}</text>'
            )
            y += row
        y += 12
    return "\n".join([*out, "</svg>"]) + "\n"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    counts = sorted({1, cores})
    report: Found = {
        "model": options.model,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cores} cores of {cpu_name()}",
        "threads": counts,
        "results": measure(options.model, options.runs, counts),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "octavo.json").write_text(json.dumps(report, indent=1))
    (options.out / "octavo.md").write_text(to_markdown(report))
    (options.out / "octavo.svg").write_text(to_svg(report))
    print(to_markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
