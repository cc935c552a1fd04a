"""Spec → program, arena, cost."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.models.spec import LayerSpec, Llama3Scaling, ModelSpec, RopeSpec
from octavo.program import (
    StepShape,
    build_program,
    describe,
    kv_layout,
    layout_arena,
    op_cost,
    program_cost,
)
from octavo.program import ops as op
from octavo.program.arena import live_ranges
from octavo.program.ops import Buffer, Per
from octavo.program.rope import inverse_frequencies

ROPE = RopeSpec(10000.0, 16, interleaved=False)


def spec_of(windows: list[int | None], **changes: object) -> ModelSpec:
    values: dict[str, object] = {
        "family": "test",
        "vocab_size": 96,
        "hidden_size": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "max_position": 512,
        "norm_eps": 1e-5,
        "norm_offset": 0.0,
        "activation": "silu",
        "qkv_bias": False,
        "qk_norm": False,
        "post_norms": False,
        "embed_scale": 1.0,
        "attn_scale": 0.25,
        "tie_embeddings": False,
        "layers": tuple(LayerSpec(window, ROPE) for window in windows),
    }
    return ModelSpec(**{**values, **changes})  # type: ignore[arg-type]


def test_groups_have_one_size() -> None:
    """Gemma 3 270M: 3 full and 15 window layers → six groups of three."""
    windows = [None if (i + 1) % 6 == 0 else 512 for i in range(18)]
    layout = kv_layout(spec_of(windows), 16)
    assert sorted(len(group.layers) for group in layout.groups) == [3] * 6
    assert sum(group.window is None for group in layout.groups) == 1
    assert sorted(i for group in layout.groups for i in group.layers) == list(range(18))
    for group in layout.groups:
        assert {windows[i] for i in group.layers} == {group.window}
    assert layout.block_bytes(2) == 3 * 2 * 2 * 16 * 16 * 2
    assert len(kv_layout(spec_of([None] * 5), 16).groups) == 1
    assert len(kv_layout(spec_of([None, 8, None]), 16).groups) == 3


@pytest.mark.parametrize("change", [{}, {"qkv_bias": True}, {"qk_norm": True, "post_norms": True}])
def test_every_op_reads_what_was_written_and_every_tensor_is_read(change: dict[str, bool]) -> None:
    program = build_program(spec_of([None, 8], **change), 16)
    known = {buffer.name for buffer in program.buffers}
    for ops in (program.forward, program.sample):
        written: set[str] = set()
        for item in ops:
            assert set(item.reads()) <= written, item
            assert set(item.writes()) <= known
            written |= set(item.writes())
    read = {name for item in (*program.forward, *program.sample) for name in item.weights()}
    assert read == {tensor.name for tensor in program.tensors}
    stores = [item for item in program.forward if isinstance(item, op.KvStore)]
    assert len({(item.group, item.layer) for item in stores}) == 2
    assert isinstance(program.forward[-1], op.GatherRows)
    assert isinstance(program.sample[-1], op.Sample)


_USES = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcdefg"), max_size=2).map(tuple),
        st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=25,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(uses=_USES, widths=st.lists(st.integers(1, 300), min_size=7, max_size=7))
def test_buffers_that_live_together_do_not_overlap(
    uses: list[tuple[tuple[str, ...], tuple[str, ...]]], widths: list[int]
) -> None:
    used = {name for reads, writes in uses for name in (*reads, *writes)}
    buffers = [
        Buffer(name, Per.TOKEN, width)
        for name, width in zip("abcdefg", widths, strict=True)
        if name in used
    ]
    layout = layout_arena(buffers, uses, tile=3, sample_rows=2)
    ranges = live_ranges(uses)
    places = {n: (layout.offsets[n], layout.offsets[n] + layout.sizes[n]) for n in used}
    largest = 0
    for step in range(len(uses)):
        alive = [n for n in used if any(a <= step <= b for a, b in ranges[n])]
        ordered = sorted(places[name] for name in alive)
        for (_, high), (low, _) in pairwise(ordered):
            assert high <= low
        largest = max(largest, sum(layout.sizes[name] for name in alive))
    assert largest <= layout.total_bytes <= sum(layout.sizes.values())
    assert all(low % 64 == 0 for low, _ in places.values())


def test_a_real_programs_arena_is_smaller_than_its_buffers() -> None:
    program = build_program(spec_of([None] * 4), 16)
    steps = [(item.reads(), item.writes()) for item in (*program.forward, *program.sample)]
    layout = layout_arena(program.buffers, steps, 512, 32)
    assert layout.total_bytes < 0.8 * sum(layout.sizes.values())


def test_cost_counts_weights_once_and_flops_per_token() -> None:
    program = build_program(spec_of([None, 8]), 16)
    weights = {tensor.name: 1000 for tensor in program.tensors}
    linear = next(item for item in program.forward if isinstance(item, op.Linear))
    one = op_cost(linear, program, StepShape.decode(1, 100), weights, 2)
    many = op_cost(linear, program, StepShape.decode(8, 100), weights, 2)
    assert one.flops == 2 * 64 * 64
    assert many.flops == 8 * one.flops
    assert many.bytes_read - one.bytes_read == 7 * 64 * 4
    full, window = (item for item in program.forward if isinstance(item, op.Attention))
    deep = StepShape.decode(1, 400)
    assert op_cost(full, program, deep, weights, 2).flops == 4 * 400 * 64
    assert op_cost(window, program, deep, weights, 2).flops == 4 * 8 * 64
    prefill = program_cost(program, StepShape.prefill(64), weights, 2)
    decode = program_cost(program, StepShape.decode(1, 64), weights, 2)
    assert prefill.flops > 30 * decode.flops
    assert prefill.bytes_read < 64 * decode.bytes_read


def test_describe_names_every_op_and_the_totals() -> None:
    program = build_program(spec_of([None, 8]), 16)
    formats = {t.name: ("q4_1", 4 * math.prod(t.shape)) for t in program.tensors}
    text = describe(program, formats, StepShape.decode(1, 64))
    lines = text.splitlines()
    assert len([line for line in lines if "→" in line]) == len(program.forward + program.sample)
    for word in ("arena", "KV", "weights", "layers.1.down:q4_1", "window 8"):
        assert word in text


def test_rope_frequencies() -> None:
    plain = inverse_frequencies(ROPE)
    np.testing.assert_allclose(plain, 10000.0 ** (-2 * np.arange(8) / 16))
    halved = inverse_frequencies(RopeSpec(10000.0, 16, False, linear_factor=2.0))
    np.testing.assert_allclose(halved, np.array(plain) / 2)
    factors = tuple(float(i + 1) for i in range(8))
    divided = inverse_frequencies(RopeSpec(10000.0, 16, False, factors=factors))
    np.testing.assert_allclose(divided, np.array(plain) / factors)


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    rope = RopeSpec(500000.0, 128, False, llama3=scaling)
    plain = np.array(inverse_frequencies(RopeSpec(500000.0, 128, False)))
    scaled = np.array(inverse_frequencies(rope))
    wave = 2 * np.pi / plain
    np.testing.assert_array_equal(scaled[wave < 8192 / 4], plain[wave < 8192 / 4])
    np.testing.assert_allclose(scaled[wave > 8192], plain[wave > 8192] / 8)
    middle = (wave > 8192 / 4) & (wave < 8192)
    assert middle.any()
    assert ((scaled[middle] < plain[middle]) & (scaled[middle] > plain[middle] / 8)).all()
