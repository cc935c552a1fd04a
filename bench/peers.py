"""octavo beside other engines: the same weights, machine and threads, taking turns.

    make bench-peers                                      everything, five rounds
    python bench/peers.py --engines octavo llama.cpp --only latency --runs 3

Each round starts every engine in turn, measures it and stops it, and the next round begins with
another one, because a shared machine drifts. Measured are: from the command to the first token,
one stream (128 tokens after a prompt of 128; a prompt of 512), 32 streams at once (128 + 128
tokens each), and open-loop traffic (`bench/load.py`). Prompts are random token ids without a
shared prefix, replies greedy and of fixed length. Engines with an OpenAI server are measured over
HTTP, the others in their own process; `octavo bench` and `llama-bench` are the two engines' own
tools without a server, and what runs without one is compared with the former. A start that is not
counted comes first, so caches are warm.

An engine that cannot be installed, started or asked is left out, and the report says why. Written
after every round, under --out: peers.json, peers.md, peers.svg. Peers live in build/peers.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from client import RequestFailed
from convert import convert
from engines.api import MEASURES, About, Engine, Measure, Setting, Unavailable
from engines.llama_cpp import LlamaBench, LlamaServer
from engines.octavo import Octavo, OctavoBench
from engines.openvino import OpenVino
from engines.transformers import Transformers
from engines.vllm import Vllm
from load import Traffic
from octavo.config import probe_machine
from octavo.weights import DEFAULT_MODEL, resolve_model
from report import Report, Row, to_json, to_markdown, to_svg

ROOT = Path(__file__).resolve().parent.parent
ENGINES: tuple[Engine, ...] = (
    Octavo(bf16=False),
    Octavo(bf16=True),
    LlamaServer(),
    Vllm(),
    OpenVino(),
    Transformers(),
    OctavoBench(bf16=False),
    OctavoBench(bf16=True),
    LlamaBench(),
)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is stopped too
    chosen = [engine for engine in ENGINES if engine.name in options.engines]
    traffic = Traffic(rate=options.rate, num_prompts=options.num_prompts)
    name = re.sub(r"[^\w.-]+", "-", options.model)
    setting = Setting(
        gguf=resolve_model(options.model).resolve(),
        hf=ROOT / "build/bench" / f"{name}-bf16",
        peers=ROOT / "build/peers",
        threads=options.threads,
        traffic=traffic,
        only=frozenset(options.only or MEASURES),
    )
    found, skipped = install(chosen, setting)
    rows = {engine.name: _row(engine, about) for engine, about in found}
    report = Report(
        date=time.strftime("%Y-%m-%d"),
        machine=machine(),
        model=setting.gguf.stem,
        options={
            "threads": options.threads,
            "runs": options.runs,
            "only": sorted(setting.only),
            "traffic": describe(traffic),
            "lengths": asdict(traffic),
        },
        rows=tuple(rows.values()),
        skipped=skipped,
    )
    warm = replace(setting, only=frozenset[Measure]())
    for engine, about in found:
        if about.way != "own tool":
            one_round(engine, warm, 0, skipped)
    for number in range(options.runs):
        shift = number % max(1, len(found))
        for engine, _ in found[shift:] + found[:shift]:
            figures = one_round(engine, setting, number + 1, skipped)
            rows[engine.name].runs.extend([figures] if figures else [])
        write(report, options.out)
    print(to_markdown(report))
    return int(options.runs > 0 and not any(row.runs for row in report.rows))


def _options() -> argparse.Namespace:
    names = [engine.name for engine in ENGINES]
    traffic = Traffic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engines", nargs="+", choices=names, default=names, metavar="NAME",
                        help=f"which ones (default: all): {', '.join(names)}")  # fmt: skip
    parser.add_argument("--model", default=DEFAULT_MODEL,
                        help=f"a model that is a GGUF file (default {DEFAULT_MODEL})")  # fmt: skip
    parser.add_argument("--runs", type=int, default=5, help="rounds (default 5); 0 only installs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of every engine (default: the cores of this process)")  # fmt: skip
    parser.add_argument("--only", action="append", choices=MEASURES, help="repeatable")
    parser.add_argument("--rate", type=float, default=traffic.rate,
                        help=f"served requests per second (default {traffic.rate})")  # fmt: skip
    parser.add_argument("--num-prompts", type=int, default=traffic.num_prompts,
                        help=f"served requests (default {traffic.num_prompts})")  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench")
    return parser.parse_args()


def install(
    engines: Sequence[Engine], setting: Setting
) -> tuple[list[tuple[Engine, About]], dict[str, str]]:
    """The engines that are there and have something to measure, and why the others are not."""
    found, skipped = [], {}
    for engine in engines:
        say(f"{engine.name}: installing")
        try:
            if engine.bf16:
                bf16_folder(setting)
            about = engine.install(setting)
        except Unavailable as error:
            skipped[engine.name] = f"not installed: {error}"
            say(f"{engine.name}: {skipped[engine.name]}")
            continue
        if about.measures & setting.only:
            found.append((engine, about))
        else:
            skipped[engine.name] = f"measures only {', '.join(sorted(about.measures))}"
    return found, skipped


def bf16_folder(setting: Setting) -> None:
    """Write it if it is not there. Raises Unavailable."""
    if (setting.hf / "config.json").exists():
        return
    try:
        convert(setting.gguf, setting.hf)
    except ValueError as error:
        raise Unavailable(f"its weights: {error}") from None


def one_round(
    engine: Engine, setting: Setting, seed: int, skipped: dict[str, str]
) -> dict[str, float] | None:
    """An engine's figures; None if it failed now or before, with the reason in `skipped`."""
    if engine.name in skipped:
        return None
    say(f"{engine.name}: {f'round {seed}' if seed else 'first start'}")
    try:
        return engine.figures(setting, seed)
    except (Unavailable, RequestFailed) as error:
        when = f"in round {seed}" if seed else "when first started"
        skipped[engine.name] = f"failed {when}: {error}"
        say(f"{engine.name}: {skipped[engine.name]}")
        return None


def _row(engine: Engine, about: About) -> Row:
    """Compared with octavo's row of the same weights, with or without a server as it is itself.

    Where that row lacks a figure (a tool has no start), with octavo's server.
    """
    kind = "-bf16" if engine.bf16 else ""
    server, alone = f"octavo{kind}", f"octavo-bench{kind}"
    baselines = (server,) if about.way == "HTTP" else (alone, server)
    return Row(engine.name, about.version, about.weights, about.way, about.notes, baselines)


def machine() -> Mapping[str, Any]:
    info = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return {
        "cpu": f"{len(names)} cores of {names[0]}" if names else platform.processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **asdict(probe_machine()),
    }


def describe(traffic: Traffic) -> str:
    (least, most), (short, long) = traffic.prompt_tokens, traffic.reply_tokens
    limits = traffic.limits
    return (
        f"{traffic.num_prompts} requests, Poisson arrivals at {traffic.rate:g} per second; prompts "
        f"of {least}–{most} and replies of {short}–{long} tokens, log-uniform. Within limits: the "
        f"first token in {limits.ttft_s:g} s and then {1e3 * limits.itl_s:g} ms per token in the "
        "mean, at most."
    )


def write(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (("json", to_json), ("md", to_markdown), ("svg", to_svg)):
        (folder / f"peers.{name}").write_text(make(report))


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
