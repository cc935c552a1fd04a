"""octavo and llama.cpp side by side: one stream, the same file, the same threads.

    python bench/llama_cpp.py --llama-bench PATH/TO/llama-bench [--runs 5] [--threads 2]

Engines alternate within one run, because a shared machine drifts; medians with minimum and maximum
are printed, and the ratio of the medians. llama.cpp is measured by its own `llama-bench` (prompt of
512, 128 generated), octavo by `octavo bench latency` (prompt of 512; 128 generated after 8), whose
figures include the scheduler, sampling and the Python loop. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

from octavo.weights import resolve_model


def run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def llama(binary: str, model: str, threads: int) -> dict[str, float]:
    out = run(
        [binary, "-m", model, "-t", str(threads), "-p", "512", "-n", "128", "-r", "1", "-o", "json"]
    )
    rows = json.loads(out)
    return {
        "prompt": next(row["avg_ts"] for row in rows if row["n_gen"] == 0),
        "decode": next(row["avg_ts"] for row in rows if row["n_prompt"] == 0),
    }


def octavo(model: str, threads: int) -> dict[str, float]:
    def bench(inputs: int, outputs: int) -> dict[str, dict[str, float]]:
        lengths = ["--input-len", str(inputs), "--output-len", str(outputs), "--num-iters", "1"]
        command = [sys.executable, "-m", "octavo", "bench", "latency", model, *lengths]
        found = json.loads(run([*command, "--threads", str(threads)]).splitlines()[-1])
        results: dict[str, dict[str, float]] = found["results"]
        return results

    return {
        "prompt": bench(512, 2)["prompt_tok_per_s"]["median"],
        "decode": bench(8, 128)["decode_tok_per_s"]["median"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = str(resolve_model(options.model))
    runs: dict[str, list[dict[str, float]]] = {"octavo": [], "llama.cpp": []}
    for _ in range(options.runs):
        runs["llama.cpp"].append(llama(options.llama_bench, model, options.threads))
        runs["octavo"].append(octavo(model, options.threads))
    for figure in ("prompt", "decode"):
        for engine, found in runs.items():
            values = [item[figure] for item in found]
            print(
                f"{figure:<7} {engine:<10} {median(values):8.1f} tok/s   "
                f"(min {min(values):.1f}, max {max(values):.1f})"
            )
        ours, theirs = (median(i[figure] for i in runs[e]) for e in ("octavo", "llama.cpp"))
        print(f"{figure:<7} ratio      {ours / theirs:8.2f}")
    print(json.dumps({"model": options.model, "threads": options.threads, "runs": runs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
