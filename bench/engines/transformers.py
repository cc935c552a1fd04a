"""Hugging Face transformers in process, bf16: one static batch, as a script would run it.

python -m engines.transformers FOLDER THREADS       the worker, in transformers' environment
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.api import About, Setting
    from engines.worker import Generate

PACKAGES = ("torch==2.13.0", "transformers==5.24.0")


class Transformers:
    name = "transformers"
    bf16 = True

    def _python(self, setting: Setting) -> Path:
        from engines.api import pip_environment

        return pip_environment(
            setting.peers / self.name / "venv", ("install", "--quiet", *PACKAGES)
        )

    def install(self, setting: Setting) -> About:
        from engines.api import About, package_versions

        version = package_versions(self._python(setting), ("transformers", "torch"))
        notes = ("no HTTP, no text; many streams are one batch of equal lengths",)
        return About(version, "bf16", "in process", frozenset({"latency", "throughput"}), notes)

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        from engines.session import WorkerSession
        from measure import measure

        arguments = [str(setting.hf), str(setting.threads)]
        log = setting.peers / self.name / "worker.log"
        session = WorkerSession(self._python(setting), self.name, arguments, log)
        return measure(session, setting, seed)


def load(folder: str, threads: int) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    class Clock:
        """A streamer that notes when each step's tokens came; the first call is the prompt."""

        def __init__(self) -> None:
            self.at_s: list[float] = []

        def put(self, _: Any) -> None:
            self.at_s.append(time.perf_counter())

        def end(self) -> None:
            pass

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def generate(prompts: list[list[int]], tokens: int) -> list[list[float]]:
        ids, clock = torch.tensor(prompts), Clock()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=clock,
        )
        return [clock.at_s[1:]] * len(prompts)

    return generate  # type: ignore[no-any-return]


if __name__ == "__main__":
    from engines.worker import work

    work(lambda: load(sys.argv[1], int(sys.argv[2])))
