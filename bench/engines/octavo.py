"""octavo itself: `octavo serve` with the GGUF file or the bf16 folder, and `octavo bench`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import octavo
from engines.api import About, Command, Setting, run
from engines.session import ServerSession
from load import OCTAVO_FIELDS
from measure import DECODE, EACH, PROMPT, STREAMS, measure


class Octavo:
    def __init__(self, *, bf16: bool) -> None:
        self.name = "octavo-bf16" if bf16 else "octavo"
        self.bf16 = bf16

    def install(self, setting: Setting) -> About:
        return About(octavo.__version__, "bf16" if self.bf16 else gguf_format(setting.gguf), "HTTP")

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        model = setting.hf if self.bf16 else setting.gguf
        serve = [sys.executable, "-m", "octavo", "serve", str(model), "--served-model-name", "m"]
        serve += ["--threads", str(setting.threads), "--log-level", "warning"]
        log = setting.peers / self.name / "server.log"
        session = ServerSession(lambda port: [*serve, "--port", str(port)], "m", OCTAVO_FIELDS, log)
        return measure(session, setting, seed)


class OctavoBench:
    """`octavo bench`, without a server: the counterpart of llama-bench and in-process engines."""

    def __init__(self, *, bf16: bool) -> None:
        self.name = "octavo-bench-bf16" if bf16 else "octavo-bench"
        self.bf16 = bf16

    def install(self, setting: Setting) -> About:
        return About(
            octavo.__version__,
            "bf16" if self.bf16 else gguf_format(setting.gguf),
            "own tool",
            frozenset({"latency", "throughput"}),
            ("no HTTP, no text; includes the scheduler, sampling and the Python loop",),
        )

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        def bench(kind: str, lengths: tuple[int, int], figure: str) -> float:
            command: Command = [sys.executable, "-m", "octavo", "bench", kind]
            command += [setting.hf if self.bf16 else setting.gguf, "--num-iters", "1"]
            command += ["--threads", str(setting.threads), "--num-prompts", str(STREAMS)]
            command += ["--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
            found = json.loads(run(command, self.name).splitlines()[-1])
            return float(found["results"][figure]["median"])

        figures: dict[str, float] = {}
        if "latency" in setting.only:
            figures["decode_tok_per_s"] = bench("latency", DECODE, "decode_tok_per_s")
            figures["prompt_tok_per_s"] = bench("latency", PROMPT, "prompt_tok_per_s")
        if "throughput" in setting.only:
            figures["streams_tok_per_s"] = bench("throughput", EACH, "generated_tok_per_s")
        return figures


def gguf_format(path: Path) -> str:
    """The format's name in a GGUF file's name: `….Q4_1.gguf` → Q4_1."""
    return path.stem.replace("-", ".").split(".")[-1].upper()
