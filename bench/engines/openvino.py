"""OpenVINO GenAI's continuous batching in process, from the GGUF file.

python -m engines.openvino MODEL.gguf THREADS       the worker, in OpenVINO's environment
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.api import About, Measure, Setting
    from engines.worker import Generate

PACKAGE = "openvino-genai==2026.4.1.0"


class OpenVino:
    name = "openvino"
    bf16 = False

    def _python(self, setting: Setting) -> Path:
        from engines.api import pip_environment

        return pip_environment(setting.peers / self.name / "venv", ("install", "--quiet", PACKAGE))

    def install(self, setting: Setting) -> About:
        from engines.api import About, package_versions

        version = package_versions(self._python(setting), ("openvino-genai",))
        measures: frozenset[Measure] = frozenset({"latency", "throughput"})
        return About(version, "int4 (from GGUF)", "in process", measures, ("no HTTP, no text",))

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        from engines.session import WorkerSession
        from measure import measure

        arguments = [str(setting.gguf), str(setting.threads)]
        log = setting.peers / self.name / "worker.log"
        session = WorkerSession(self._python(setting), self.name, arguments, log)
        return measure(session, setting, seed)


def load(model: str, threads: int) -> Generate:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2  # GiB
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": threads}
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], tokens: int) -> list[list[float]]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        handles: list[Any] = [
            pipeline.add_request(index, ov.Tensor(np.array([prompt], np.int64)), config)
            for index, prompt in enumerate(prompts)
        ]
        times: list[list[float]] = [[] for _ in handles]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for handle, found in zip(handles, times, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        found += [time.perf_counter()] * len(output.generated_ids)
        return times

    return generate


if __name__ == "__main__":
    from engines.worker import work

    work(lambda: load(sys.argv[1], int(sys.argv[2])))
