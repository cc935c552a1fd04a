"""Every op of the native backend against the reference, on every instruction set, random shapes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends import native, reference
from octavo.backends.native import available_isas, load_library
from octavo.program import ops as op
from octavo.program.ops import Buffer, Per
from octavo.weights.quant import BLOCK, dequantize, quantize
from tests.support.op_programs import Tensors, limits, one_op_program, run_tokens

HERE = available_isas(load_library())
QUANTISED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
FORMATS = ("f32", "f16", "bf16", *QUANTISED)
Float32 = NDArray[np.float32]


def int8_blocks(x: Float32) -> Float32:
    """Activations as the quantised kernels see them: int8 per block of 32, amax / 127."""
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = (amax / np.float32(127)).astype(np.float32)
    inverse = np.where(scale > 0, np.float32(1) / np.where(scale > 0, scale, 1), 0)
    codes = np.rint((blocks * inverse.astype(np.float32)).astype(np.float32))
    return (codes * scale).reshape(x.shape).astype(np.float32)


def weights_of(rng: np.random.Generator, n: int, k: int) -> Float32:
    return rng.standard_normal((n, k)).astype(np.float32) / np.float32(np.sqrt(k))


def run_linear(
    x: Float32, w: Float32, fmt: str, isa: str, *, bias: Float32 | None = None, threads: int = 2
) -> Float32:
    n, k = w.shape
    tensors = {"embed": x, "w": w} | ({} if bias is None else {"b": bias})
    program = one_op_program(
        k,
        n,
        [op.Linear("y", "x", "w", k, n, None if bias is None else "b")],
        "y",
        {name: array.shape for name, array in tensors.items()},
        buffers=[Buffer("y", Per.TOKEN, n)],
    )
    rows = len(x)
    size = limits(rows, num_blocks=rows, threads=threads)
    backend = native.load(program, Tensors(tensors, {"w": fmt}), size, isa=isa)
    try:
        return run_tokens(backend, range(rows), rows)
    finally:
        backend.close()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("fmt", FORMATS)
def test_linear_equals_its_definition(fmt: str, isa: str) -> None:
    rng = np.random.default_rng(FORMATS.index(fmt))
    block = BLOCK[fmt].block_size
    for rows, n, blocks in (
        (1, 16, 1),
        (2, 7, 3),
        (3, 33, 2),
        (8, 48, 4),
        (9, 100, 1),
        (70, 50, 2),
    ):
        k = blocks * max(block, 32) if fmt in QUANTISED else 29 * blocks + rows
        k += fmt == "bf16" and k % 2  # bf16 weights are held in pairs
        x, w = rng.standard_normal((rows, k)).astype(np.float32), weights_of(rng, n, k)
        bias = rng.standard_normal(n).astype(np.float32)
        exact = dequantize(quantize(w, fmt), fmt, w.shape).astype(np.float64)
        seen = int8_blocks(x) if fmt in QUANTISED else x
        if fmt == "bf16" and isa == "avx512_bf16":
            seen = dequantize(quantize(x, "bf16"), "bf16", x.shape)
        expected = seen.astype(np.float64) @ exact.T + bias
        got = run_linear(x, w, fmt, isa, bias=bias)
        assert np.abs(got - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_does_not_depend_on_its_batch(fmt: str, isa: str) -> None:
    rng = np.random.default_rng(7)
    k = 512 if fmt in QUANTISED else 78
    x, w = rng.standard_normal((67, k)).astype(np.float32), weights_of(rng, 90, k)
    together = run_linear(x, w, fmt, isa, threads=3)
    for rows in (1, 2, 3, 5, 8, 13, 66):
        assert np.array_equal(run_linear(x[:rows], w, fmt, isa, threads=1), together[:rows])


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("fmt", ("q4_1", "q8_0", "q6_k", "f32", "bf16"))
def test_extreme_activations_stay_in_their_row(fmt: str, isa: str) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((7, 256)).astype(np.float32), weights_of(rng, 20, 256)
    clean = run_linear(x, w, fmt, isa)
    x[1, 5], x[2, 7], x[3] = np.nan, np.inf, 0.0
    x[4] = 1e-42
    x[5, 9] = 3e38
    got = run_linear(x, w, fmt, isa)
    assert np.isnan(got[1]).all()
    assert not np.isfinite(got[2]).any()
    assert (got[3] == 0).all()
    assert np.isfinite(got[4]).all()
    assert np.array_equal(got[[0, 6]], clean[[0, 6]])


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_embedding_row_is_the_exact_dequantised_row(fmt: str) -> None:
    rng = np.random.default_rng(11)
    table = rng.standard_normal((37, 256)).astype(np.float32)
    program = one_op_program(256, 256, [], "x", {"embed": table.shape})
    backend = native.load(program, Tensors({"embed": table}, {"embed": fmt}), limits(37))
    try:
        got = run_tokens(backend, range(37), 37)
    finally:
        backend.close()
    assert np.array_equal(got, dequantize(quantize(table, fmt), fmt, table.shape))


def both(
    program: object, x: Float32, arrays: dict[str, Float32], isa: str
) -> tuple[Float32, Float32]:
    tensors = Tensors({"embed": x, **arrays}, {})
    rows = len(x)
    size = limits(rows, num_blocks=rows)
    plain = reference.load(program, tensors, size)  # type: ignore[arg-type]
    fast = native.load(program, tensors, size, isa=isa)  # type: ignore[arg-type]
    try:
        return run_tokens(plain, range(rows), rows), run_tokens(fast, range(rows), rows)
    finally:
        fast.close()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize(("width", "group"), [(64, 64), (48, 16), (37, 37), (576, 64)])
def test_rms_norm(width: int, group: int, isa: str) -> None:
    rng = np.random.default_rng(width)
    x = 3 * rng.standard_normal((5, width)).astype(np.float32)
    weight = rng.standard_normal(group).astype(np.float32)
    program = one_op_program(
        width,
        width,
        [op.RmsNorm("y", "x", "w", group, 1e-6, 1.0)],
        "y",
        {"embed": x.shape, "w": weight.shape},
        buffers=[Buffer("y", Per.TOKEN, width)],
    )
    expected, got = both(program, x, {"w": weight}, isa)
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_act_mul_over_the_whole_range(act: str, isa: str) -> None:
    x = np.concatenate(
        [np.linspace(-120, 120, 499), [0.0, 1e-30, -1e-30, 3e4, -3e4]], dtype=np.float32
    ).reshape(12, 42)
    program = one_op_program(
        42,
        42,
        [op.Add("g", "x", "x"), op.ActMul("g", "g", "x", act)],
        "g",
        {"embed": x.shape},
        buffers=[Buffer("g", Per.TOKEN, 42)],
    )
    expected, got = both(program, x, {}, isa)
    # gelu: the reference adds 1 to a tanh near −1, which costs it the digits that the native keeps.
    atol = 1e-25 if act == "silu" else 2e-7
    np.testing.assert_allclose(got, expected, rtol=5e-6, atol=atol)
