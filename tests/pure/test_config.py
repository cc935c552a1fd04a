"""Options: every bound is an error that names it, and every value says who decided it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.environment import read_environment
from octavo.base.errors import ConfigError
from octavo.config import (
    EngineArgs,
    EngineConfig,
    Machine,
    ModelFacts,
    blocks_for,
    probe_machine,
    resolve,
    with_environment,
)
from octavo.program.program import KvGroup, KvLayout

GIB = 2**30
MACHINE = Machine(
    cores=2,
    cores_online=4,
    cpu_quota=2.0,
    memory_total=8 * GIB,
    memory_available=6 * GIB,
    memory_limit=None,
    huge_pages="madvise",
)
LAYOUT = KvLayout(
    groups=(KvGroup(window=None, layers=(0, 1)),), block_size=16, kv_heads=3, head_dim=64
)
MODEL = ModelFacts(max_position=8192, kv=LAYOUT)


def test_defaults_resolve_and_every_field_says_who_decided() -> None:
    config = resolve(EngineArgs(), MACHINE, MODEL)
    assert config.max_model_len == 8192
    assert config.threads == 2
    assert config.backend == "native"
    assert config.served_model_name == ("smollm2-135m",)
    assert config.decisions["max_model_len"].by == "model"
    assert config.decisions["threads"].by == "machine"
    assert config.decisions["block_size"].by == "default"
    undecided = {f.name for f in fields(EngineConfig)} - set(config.decisions) - {"decisions"}
    assert undecided == set()


def test_what_the_user_says_is_the_users_decision() -> None:
    args = EngineArgs(threads=1, max_num_seqs=3, max_model_len=100)
    config = resolve(args, MACHINE, MODEL)
    assert (config.threads, config.max_num_seqs, config.max_model_len) == (1, 3, 100)
    assert all(config.decisions[n].by == "user" for n in ("threads", "max_num_seqs"))


def test_the_pool_is_what_rows_need_or_what_memory_allows() -> None:
    block = LAYOUT.block_bytes("bfloat16")
    small = resolve(EngineArgs(max_num_seqs=2, max_model_len=64), MACHINE, MODEL)
    assert small.num_blocks == 2 * 4
    assert small.kv_cache_memory_bytes == 8 * block
    tight = replace(MACHINE, memory_available=4000 * block)
    config = resolve(EngineArgs(max_num_seqs=64), tight, MODEL)
    assert config.num_blocks == 2000
    assert "free memory" in config.decisions["num_blocks"].why or config.num_blocks == 2000


def test_int8_keys_and_values_take_half_the_pool_and_their_scales() -> None:
    config = resolve(
        EngineArgs(kv_cache_dtype="int8", max_num_seqs=2, max_model_len=64), MACHINE, MODEL
    )
    values = 2 * LAYOUT.layers_per_group * LAYOUT.kv_heads * LAYOUT.block_size
    assert config.kv_cache_memory_bytes == config.num_blocks * values * (LAYOUT.head_dim + 4)
    assert resolve(EngineArgs(), MACHINE, MODEL).kv_cache_dtype == "bfloat16"
    assert resolve(EngineArgs(backend="reference"), MACHINE, MODEL).kv_cache_dtype == "float32"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"block_size": 12}, "--block-size"),
        ({"block_size": 0}, "--block-size"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_num_batched_tokens": 8}, "--max-num-batched-tokens"),
        ({"max_num_batched_tokens": 10**6}, "--max-num-batched-tokens"),
        ({"max_num_queued_reqs": 0}, "--max-num-queued-reqs"),
        ({"threads": 0}, "--threads"),
        ({"max_model_len": 1}, "--max-model-len"),
        ({"max_model_len": 8193}, "--max-model-len"),
        ({"backend": "nativ"}, "native"),
        ({"isa": "avx9"}, "--isa"),
        ({"generation_config": "none"}, "--generation-config"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
        ({"kv_cache_dtype": "int8", "backend": "reference"}, "--kv-cache-dtype"),
        ({"block_size": 1}, "--block-size"),
        ({"kv_cache_memory_bytes": 10}, "--kv-cache-memory-bytes"),
        ({"kv_cache_memory_bytes": 7 * GIB}, "--kv-cache-memory-bytes"),
    ],
)
def test_out_of_bounds_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve(replace(EngineArgs(), **change), MACHINE, MODEL)  # type: ignore[arg-type]


def test_a_pool_too_small_for_one_request_is_refused_with_numbers() -> None:
    tight = replace(MACHINE, memory_available=100 * LAYOUT.block_bytes("bfloat16"))
    with pytest.raises(ConfigError, match=r"512 KV blocks .* pool would have 50"):
        resolve(EngineArgs(), tight, MODEL)


@settings(derandomize=True, deadline=None)
@given(
    window=st.integers(1, 200),
    tokens=st.integers(1, 500),
    chunk=st.integers(1, 64),
    block_size=st.sampled_from([1, 2, 4, 16]),
)
def test_blocks_for_bounds_what_a_window_group_holds(
    window: int, tokens: int, chunk: int, block_size: int
) -> None:
    layout = KvLayout(
        groups=(KvGroup(window=window, layers=(0,)),), block_size=block_size, kv_heads=1, head_dim=8
    )
    most = 0
    start = 0
    while start < tokens:  # the blocks alive while [start, end) is computed
        end = min(tokens, start + chunk)
        first = max(0, start - window + 1) // block_size
        most = max(most, (end - 1) // block_size + 1 - first)
        start = end
    assert most <= blocks_for(layout, tokens, chunk)


def test_environment_is_parsed_and_yields_to_flags() -> None:
    env = read_environment({"OCTAVO_ISA": "avx2", "OCTAVO_THREADS": "3", "XDG_CACHE_HOME": "/c"})
    assert env.cache_dir == Path("/c/octavo")
    args = with_environment(EngineArgs(threads=1), env)
    assert (args.isa, args.threads) == ("avx2", 1)
    with pytest.raises(ConfigError, match="OCTAVO_THREADS"):
        read_environment({"OCTAVO_THREADS": "many"})


def test_the_machine_can_be_read() -> None:
    machine = probe_machine()
    assert machine.cores >= 1
    assert 0 < machine.memory_available <= machine.memory_total
