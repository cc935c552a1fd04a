"""The block formats: bit for bit what the `gguf` package decodes, small errors when encoding."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from octavo.weights.quant import BLOCK, dequantize, quantize, tensor_nbytes

FORMATS = sorted(BLOCK)
# Largest error of a code, in units of (max - min) of the block it is in.
STEP_FRACTION = {
    "q4_0": 1 / 14, "q4_1": 0.6 / 15, "q5_0": 1 / 30, "q5_1": 0.6 / 31, "q8_0": 0.6 / 127,
    "q4_k": 1 / 15, "q5_k": 1 / 31, "q6_k": 1 / 32,
}  # fmt: skip


def random_blocks(dtype: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, blocks * BLOCK[dtype].nbytes), dtype=np.uint8)


@pytest.mark.parametrize("dtype", FORMATS)
def test_sizes_are_the_formats_of_ggml(dtype: str) -> None:
    expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]]
    assert (BLOCK[dtype].block_size, BLOCK[dtype].nbytes) == expected


@pytest.mark.parametrize("dtype", FORMATS)
def test_decodes_random_bytes_as_the_gguf_package_does(dtype: str) -> None:
    raw = random_blocks(dtype, rows=37, blocks=3, seed=1)
    shape = (37, 3 * BLOCK[dtype].block_size)
    with np.errstate(all="ignore"):  # random scales include infinities and NaNs
        ours = dequantize(raw, dtype, shape)
        theirs = quants.dequantize(raw, gguf.GGMLQuantizationType[dtype.upper()])
    assert ours.dtype == np.float32 and ours.shape == theirs.shape == shape
    finite = np.isfinite(theirs)
    assert finite.any()
    assert np.array_equal(ours.view(np.uint32)[finite], theirs.view(np.uint32)[finite])
    assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", sorted(STEP_FRACTION))
@pytest.mark.parametrize("shift", [0.0, 0.5, -3.0])
def test_encoding_errs_by_about_half_a_step(dtype: str, shift: float) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((16, 512)) + shift).astype(np.float32)
    back = dequantize(quantize(x, dtype), dtype, x.shape)
    blocks = x.reshape(-1, BLOCK[dtype].block_size)
    span = np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)
    peak = np.abs(blocks).max(-1)
    # Symmetric formats span twice their peak whatever the values are.
    span = np.maximum(span, 2 * peak) if dtype in ("q4_0", "q5_0", "q8_0", "q6_k") else span
    error = np.abs(back - x).reshape(blocks.shape).max(-1)
    assert (error <= STEP_FRACTION[dtype] * span + 1e-3 * peak).all()


@pytest.mark.parametrize("dtype", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_simple_formats_are_as_close_as_the_gguf_package(dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    theirs = quants.dequantize(quants.quantize(x, kind), kind)
    ours = dequantize(quantize(x, dtype), dtype, x.shape)
    assert np.square(ours - x).mean() <= 1.02 * np.square(theirs - x).mean()


@pytest.mark.parametrize(("dtype", "error"), [("q4_k", 0.09), ("q5_k", 0.05), ("q6_k", 0.025)])
def test_k_quants_are_close_and_read_by_the_gguf_package(dtype: str, error: float) -> None:
    x = np.random.default_rng(4).standard_normal((32, 512)).astype(np.float32)
    raw = quantize(x, dtype)
    theirs = quants.dequantize(raw.reshape(32, -1), gguf.GGMLQuantizationType[dtype.upper()])
    assert np.sqrt(np.square(theirs - x).mean()) < error


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_equal_values_survive(dtype: str, value: float) -> None:
    x = np.full((2, 256), value, np.float32)
    back = dequantize(quantize(x, dtype), dtype, x.shape)
    assert np.abs(back - x).max() <= 0.005 * abs(value)


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0xFF800000], np.uint32)
    raw = quantize(bits.view(np.float32), "bf16").view("<u2")
    assert raw[:3].tolist() == [0x3F80, 0x3F82, 0x3F81]
    assert np.isnan(dequantize(raw[3:4].view(np.uint8), "bf16", (1,)))[0]
    assert raw[4] == 0xFF80


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks of 32"):
        tensor_nbytes("q4_0", (4, 33))
    with pytest.raises(ValueError, match="expected 18 bytes"):
        dequantize(np.zeros(17, np.uint8), "q4_0", (32,))
    with pytest.raises(ValueError, match="unknown weight format"):
        tensor_nbytes("iq2_xs", (256,))
