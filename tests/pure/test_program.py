"""Spec → program, arena, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from octavo.program.arena import ArenaLayout, live_ranges
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
    values = 3 * 2 * 2 * 16 * 16
    assert layout.block_bytes("bfloat16") == values * 2
    assert layout.block_bytes("float32") == values * 4
    assert layout.block_bytes("int8") == values + values // 16 * 4  # a scale per entry and head
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


@pytest.mark.parametrize(
    ("change", "per_layer"),
    [({}, 16), ({"qkv_bias": True}, 16), ({"qk_norm": True}, 18), ({"post_norms": True}, 18)],
    ids=["plain", "qkv_bias", "qk_norm", "post_norms"],
)
def test_ops_and_shapes(change: dict[str, bool], per_layer: int) -> None:
    program = build_program(spec_of([None, 8, 8], **change), 16)
    assert len(program.forward) == 3 * per_layer + 2
    kinds = [type(item) for item in program.sample]
    assert kinds == [op.LoadRows, op.RmsNorm, op.Linear, op.Sample]
    shapes = {tensor.name: tensor.shape for tensor in program.tensors}
    widths = {buffer.name: buffer.width for buffer in program.buffers}
    linears = [item for item in (*program.forward, *program.sample) if isinstance(item, op.Linear)]
    assert len(linears) == 3 * 7 + 1
    for item in linears:
        assert shapes[item.weight] == (item.n_out, item.n_in)
        assert (widths[item.x], widths[item.out]) == (item.n_in, item.n_out)
        assert (item.bias is not None) == (
            change.get("qkv_bias", False) and item.out in ("q", "k", "v")
        )
        if item.bias is not None:
            assert shapes[item.bias] == (item.n_out,)
    for norm in (item for item in program.forward if isinstance(item, op.RmsNorm)):
        assert shapes[norm.weight] == (norm.width,)
        assert widths[norm.out] == widths[norm.x]
        assert widths[norm.x] % norm.width == 0
    windows = [item.window for item in program.forward if isinstance(item, op.Attention)]
    assert windows == [None, 8, 8]


def test_a_tied_head_is_the_embedding() -> None:
    tied = build_program(spec_of([None], tie_embeddings=True), 16)
    own = build_program(spec_of([None]), 16)
    heads = [
        next(item.weight for item in program.sample if isinstance(item, op.Linear))
        for program in (tied, own)
    ]
    assert heads == ["embed", "lm_head"]
    assert {t.name for t in own.tensors} - {t.name for t in tied.tensors} == {"lm_head"}


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


def _run_in_arena(
    layout: ArenaLayout, uses: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
) -> None:
    """Stamp what each step writes; every read finds the last stamp of its buffer, untouched.

    Knows nothing of lifetimes: it would notice a range that ends too early.
    """
    arena = np.zeros(layout.total_bytes // 64, np.int64)
    stamps: dict[str, int] = {}

    def place(name: str) -> slice:
        return slice(layout.offsets[name] // 64, (layout.offsets[name] + layout.sizes[name]) // 64)

    for step, (reads, writes) in enumerate(uses):
        for name in reads:
            if name in stamps:
                assert (arena[place(name)] == stamps[name]).all(), (step, name)
        for i, name in enumerate(dict.fromkeys(writes)):
            stamps[name] = 1 + 16 * step + i
            arena[place(name)] = stamps[name]
        for name in writes:  # what one step writes side by side is there after it
            assert (arena[place(name)] == stamps[name]).all(), (step, name)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(uses=_USES, widths=st.lists(st.integers(1, 300), min_size=7, max_size=7))
def test_what_is_read_is_what_was_written_last(
    uses: list[tuple[tuple[str, ...], tuple[str, ...]]], widths: list[int]
) -> None:
    buffers = [Buffer(n, Per.TOKEN, w) for n, w in zip("abcdefg", widths, strict=True)]
    _run_in_arena(layout_arena(buffers, uses, tile=3, sample_rows=2), uses)


@pytest.mark.parametrize("change", [{}, {"qk_norm": True, "post_norms": True}])
def test_a_program_finds_what_it_wrote(change: dict[str, bool]) -> None:
    program = build_program(spec_of([None, 8], **change), 16)
    uses = [(item.reads(), item.writes()) for item in (*program.forward, *program.sample)]
    layout = layout_arena(program.buffers, uses, 512, 32)
    _run_in_arena(layout, uses)
    in_place = [item for item in program.forward if set(item.reads()) & set(item.writes())]
    assert {type(item) for item in in_place} >= {op.Rope, op.ActMul, op.Add}


def test_an_in_place_op_keeps_what_lay_idle_before_it() -> None:
    """a waits over a step in which only b lives: b may not take its place."""
    uses = [((), ("a",)), ((), ("b",)), (("b",), ("c",)), (("a", "c"), ("a",))]
    layout = layout_arena([Buffer(n, Per.TOKEN, 16) for n in "abc"], uses, 1, 1)
    assert layout.offsets["a"] not in (layout.offsets["b"], layout.offsets["c"])
    _run_in_arena(layout, uses)


def test_a_prefill_reads_its_rows_keys_once() -> None:
    program = build_program(spec_of([None, 8]), 16)
    full, window = (item for item in program.forward if isinstance(item, op.Attention))
    weights = {tensor.name: 0 for tensor in program.tensors}
    queries, per_key = 4 * 64, 2 * 2 * 16 * 2  # one token's bytes in, one key and value in bf16

    def keys(item: op.Attention, shape: StepShape) -> int:
        read = op_cost(item, program, shape, weights, 2).bytes_read
        return (read - queries * shape.tokens) // per_key

    assert keys(full, StepShape.prefill(64)) == 64
    assert keys(window, StepShape.prefill(64)) == 64
    chunk = StepShape(4, 1, (101, 102, 103, 104))
    assert (keys(full, chunk), keys(window, chunk)) == (104, 11)
    apart = StepShape.decode(3, 50)  # three rows, nothing shared
    assert (keys(full, apart), keys(window, apart)) == (150, 24)


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
