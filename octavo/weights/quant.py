"""The block formats of GGUF as data, and what each one means.

A quantised row is a run of blocks; a block holds `block_size` values in `nbytes` bytes. The
functions here *define* the formats (vectorised numpy, float32): kernels are tested against them.
All integers are little endian, all scales are float16, low nibbles come before high ones.

    q4_0  d              qs[16]                x = d·(q - 8)
    q4_1  d m            qs[16]                x = d·q + m
    q5_0  d     qh u32   qs[16]                x = d·(q - 16)      qh: bit i is bit 4 of value i
    q5_1  d m   qh u32   qs[16]                x = d·q + m
    q8_0  d              qs[32] int8           x = d·q
    q4_k  d dmin sc[12]  qs[128]               x = (d·s)·q - (dmin·m)    8 sub-blocks of 32
    q5_k  d dmin sc[12]  qh[32] qs[128]        as q4_k; qh[j] bit s is bit 4 of value 32·s + j
    q6_k  ql[128] qh[64] sc[16] int8  d        x = (d·s)·(q - 32)        16 sub-blocks of 16

In 4- and 5-bit blocks of 32, values 0..15 are the low nibbles and 16..31 the high ones. In q4_k and
q5_k, bytes 32g..32g+31 hold sub-block 2g in their low and 2g+1 in their high nibbles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """`block_size` values take `nbytes` bytes. Plain dtypes have blocks of one value."""

    block_size: int
    nbytes: int


BLOCK: dict[str, BlockFormat] = {
    "f32": BlockFormat(1, 4),
    "f16": BlockFormat(1, 2),
    "bf16": BlockFormat(1, 2),
    "q4_0": BlockFormat(32, 18),
    "q4_1": BlockFormat(32, 20),
    "q5_0": BlockFormat(32, 22),
    "q5_1": BlockFormat(32, 24),
    "q8_0": BlockFormat(32, 34),
    "q4_k": BlockFormat(256, 144),
    "q5_k": BlockFormat(256, 176),
    "q6_k": BlockFormat(256, 210),
}


def tensor_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; its last dimension is a whole number of blocks (ValueError otherwise)."""
    block = _block(dtype)
    row = shape[-1] if shape else 1
    if row % block.block_size:
        raise ValueError(
            f"{dtype}: rows of {row} values are not whole blocks of {block.block_size}"
        )
    return math.prod(shape) // block.block_size * block.nbytes


def dequantize(raw: Bytes, dtype: str, shape: tuple[int, ...]) -> Floats:
    """The values of `raw` (uint8, `tensor_nbytes(dtype, shape)` bytes) as float32 `shape`.

    ValueError when the byte count does not fit. The result is a new array.
    """
    expected = tensor_nbytes(dtype, shape)
    if raw.dtype != np.uint8 or raw.size != expected:
        raise ValueError(
            f"{dtype} {shape}: got {raw.size} × {raw.dtype}, expected {expected} bytes"
        )
    blocks = np.ascontiguousarray(raw).reshape(-1, BLOCK[dtype].nbytes)
    return _DECODE[dtype](blocks).reshape(shape)


def quantize(x: Floats, dtype: str) -> Bytes:
    """`x` (float, last dimension whole blocks) as a flat uint8 array in `dtype`.

    Round to nearest with one scale (or scale and minimum) per block from its extremes: simple and
    valid, without the error-weighted search that makes the best files. Values are assumed finite.
    """
    nbytes = tensor_nbytes(dtype, x.shape)
    values = np.ascontiguousarray(x, dtype=np.float32).reshape(-1, BLOCK[dtype].block_size)
    out: Bytes = np.ascontiguousarray(_ENCODE[dtype](values)).reshape(-1).view(np.uint8)
    assert out.size == nbytes
    return out


def _block(dtype: str) -> BlockFormat:
    if dtype not in BLOCK:
        raise ValueError(f"unknown weight format {dtype!r}, expected one of {', '.join(BLOCK)}")
    return BLOCK[dtype]


# Small pieces -------------------------------------------------------------------------------


def _half(raw: Bytes) -> Floats:
    """[n, 2k] bytes → [n, k] float32 from float16."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _as_half(x: Floats) -> tuple[Bytes, Floats]:
    """[n, 1] float32 → its float16 bytes [n, 2] and the values a reader will see [n, 1]."""
    half = x.astype("<f2")
    return half.view(np.uint8), half.astype(np.float32)


def _divide(x: Floats, by: Floats) -> Floats:
    """x / by, and 0 where `by` is 0 (a block of equal values needs no codes)."""
    out: Floats = np.divide(
        x, by, out=np.zeros(np.broadcast_shapes(x.shape, by.shape), np.float32), where=by != 0
    )
    return out


def _codes(x: Floats, scale: Floats, low: int, high: int) -> NDArray[np.int32]:
    """round(x / scale) clipped to [low, high]."""
    return np.clip(np.rint(_divide(x, scale)), low, high).astype(np.int32)


def _signed_peak(x: Floats) -> Floats:
    """[n, k] → [n, 1]: the value of largest magnitude, with its sign."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)


def _nibbles(qs: Bytes) -> Bytes:
    """[n, 16] bytes → [n, 32] codes: low nibbles, then high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _pack_nibbles(q: NDArray[np.int32]) -> Bytes:
    half = q.shape[-1] // 2
    low, high = q[..., :half], q[..., half:]
    return ((low & 15) | ((high & 15) << 4)).astype(np.uint8)


def _fifth_bits(qh: Bytes) -> Bytes:
    """[n, 4] bytes → [n, 32] of 0 or 16: bit i belongs to value i."""
    return np.unpackbits(qh, axis=-1, bitorder="little") * np.uint8(16)


def _pack_fifth_bits(q: NDArray[np.int32]) -> Bytes:
    return np.packbits((q >> 4).astype(np.uint8) & 1, axis=-1, bitorder="little")


# Plain dtypes and blocks of 32 --------------------------------------------------------------


def _decode_f32(b: Bytes) -> Floats:
    return b.view("<f4").astype(np.float32)


def _decode_f16(b: Bytes) -> Floats:
    return _half(b)


def _decode_bf16(b: Bytes) -> Floats:
    return (b.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _decode_q4_0(b: Bytes) -> Floats:
    return _half(b[:, :2]) * (_nibbles(b[:, 2:]).astype(np.float32) - np.float32(8))


def _decode_q4_1(b: Bytes) -> Floats:
    return _half(b[:, :2]) * _nibbles(b[:, 4:]).astype(np.float32) + _half(b[:, 2:4])


def _decode_q5_0(b: Bytes) -> Floats:
    q = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _half(b[:, :2]) * (q.astype(np.float32) - np.float32(16))


def _decode_q5_1(b: Bytes) -> Floats:
    q = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _half(b[:, :2]) * q.astype(np.float32) + _half(b[:, 2:4])


def _decode_q8_0(b: Bytes) -> Floats:
    return _half(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def _encode_f32(x: Floats) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def _encode_f16(x: Floats) -> Bytes:
    return x.astype("<f2").view(np.uint8)


def _encode_bf16(x: Floats) -> Bytes:
    bits = x.view(np.uint32)
    # To nearest, ties to even: add half of the dropped range, less one when the kept bit is even.
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    nan = np.uint32(0x40) | (bits >> 16)
    return np.where(np.isnan(x), nan, rounded).astype("<u2").view(np.uint8)


def _encode_signed(x: Floats, center: int) -> tuple[Bytes, NDArray[np.int32]]:
    """One scale, codes 0..2·center-1; the peak maps to code 0, the end with one more step."""
    d_raw, d = _as_half(_signed_peak(x) / np.float32(-center))
    return d_raw, _codes(x, d, -center, center - 1) + center


def _encode_ranged(x: Floats, top: int) -> tuple[Bytes, Bytes, NDArray[np.int32]]:
    """Scale and minimum, codes 0..top."""
    low = x.min(axis=-1, keepdims=True)
    d_raw, d = _as_half((x.max(axis=-1, keepdims=True) - low) / np.float32(top))
    m_raw, m = _as_half(low)
    return d_raw, m_raw, _codes(x - m, d, 0, top)


def _encode_q4_0(x: Floats) -> Bytes:
    d, q = _encode_signed(x, 8)
    return np.concatenate([d, _pack_nibbles(q)], axis=-1)


def _encode_q4_1(x: Floats) -> Bytes:
    d, m, q = _encode_ranged(x, 15)
    return np.concatenate([d, m, _pack_nibbles(q)], axis=-1)


def _encode_q5_0(x: Floats) -> Bytes:
    d, q = _encode_signed(x, 16)
    return np.concatenate([d, _pack_fifth_bits(q), _pack_nibbles(q)], axis=-1)


def _encode_q5_1(x: Floats) -> Bytes:
    d, m, q = _encode_ranged(x, 31)
    return np.concatenate([d, m, _pack_fifth_bits(q), _pack_nibbles(q)], axis=-1)


def _encode_q8_0(x: Floats) -> Bytes:
    d_raw, d = _as_half(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127))
    q = _codes(x, d, -127, 127).astype(np.int8)
    return np.concatenate([d_raw, q.view(np.uint8)], axis=-1)


# Super-blocks of 256 ------------------------------------------------------------------------


def _unpack_six_bit(sc: Bytes) -> tuple[Bytes, Bytes]:
    """[n, 12] → scales [n, 8], minima [n, 8], six bits each.

    bytes 0..3: scales 0..3 in bits 0..5, bits 4..5 of scales 4..7 in bits 6..7
    bytes 4..7: the same for minima
    bytes 8..11: low four bits of scales 4..7, then of minima 4..7 in the high nibble
    """
    a, b, c = sc[:, 0:4], sc[:, 4:8], sc[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=-1)
    minima = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=-1)
    return scales, minima


def _pack_six_bit(scales: NDArray[np.int32], minima: NDArray[np.int32]) -> Bytes:
    a = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    b = minima[:, :4] | ((minima[:, 4:] >> 4) << 6)
    c = (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)
    return np.concatenate([a, b, c], axis=-1).astype(np.uint8)


def _affine(b: Bytes, q: Bytes) -> Floats:
    """q4_k and q5_k: codes [n, 8, 32] with the header in the first 16 bytes of `b`."""
    scales, minima = _unpack_six_bit(b[:, 4:16])
    d = (_half(b[:, 0:2]) * scales.astype(np.float32))[..., None]
    m = (_half(b[:, 2:4]) * minima.astype(np.float32))[..., None]
    return d * q.astype(np.float32) - m


def _sub_block_nibbles(qs: Bytes) -> Bytes:
    """[n, 128] → [n, 8, 32]."""
    groups = qs.reshape(-1, 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _pack_sub_block_nibbles(q: NDArray[np.int32]) -> Bytes:
    pairs = q.reshape(-1, 4, 2, 32) & 15
    return (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).astype(np.uint8).reshape(-1, 128)


_BIT = np.arange(8, dtype=np.uint8)[None, :, None]


def _decode_q4_k(b: Bytes) -> Floats:
    return _affine(b, _sub_block_nibbles(b[:, 16:]))


def _decode_q5_k(b: Bytes) -> Floats:
    high = ((b[:, None, 16:48] >> _BIT) & np.uint8(1)) * np.uint8(16)
    return _affine(b, _sub_block_nibbles(b[:, 48:]) | high)


def _decode_q6_k(b: Bytes) -> Floats:
    # Halves of 128 values: ql gives 64 bytes, qh 32 bytes. Value 32·k + j of a half takes the low
    # (k < 2) or high (k ≥ 2) nibble of ql[32·(k mod 2) + j] and bits 2k, 2k+1 of qh[j].
    ql = b[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([ql & 15, ql >> 4], axis=2).reshape(-1, 2, 4, 32)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> shift) & 3
    q = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    d = _half(b[:, 208:210]) * b[:, 192:208].view(np.int8).astype(np.float32)
    out: Floats = d[..., None] * q
    return out


def _encode_affine(x: Floats, top: int) -> tuple[Bytes, NDArray[np.int32]]:
    """The 16 header bytes and the codes [n, 8, 32] of q4_k (top 15) and q5_k (top 31)."""
    sub = x.reshape(-1, 8, 32)
    low = np.minimum(sub.min(axis=-1), 0)  # minima are subtracted and stored unsigned
    scale = (np.maximum(sub.max(axis=-1), 0) - low) / np.float32(top)
    d_raw, d = _as_half(scale.max(axis=-1, keepdims=True) / np.float32(63))
    m_raw, m = _as_half((-low).max(axis=-1, keepdims=True) / np.float32(63))
    scales, minima = _codes(scale, d, 0, 63), _codes(-low, m, 0, 63)
    step = (d * scales.astype(np.float32))[..., None]
    shift = (m * minima.astype(np.float32))[..., None]
    header = np.concatenate([d_raw, m_raw, _pack_six_bit(scales, minima)], axis=-1)
    return header, _codes(sub + shift, step, 0, top)


def _encode_q4_k(x: Floats) -> Bytes:
    header, q = _encode_affine(x, 15)
    return np.concatenate([header, _pack_sub_block_nibbles(q)], axis=-1)


def _encode_q5_k(x: Floats) -> Bytes:
    header, q = _encode_affine(x, 31)
    high = ((q >> 4) << _BIT.astype(np.int32)).sum(axis=1).astype(np.uint8)
    return np.concatenate([header, high, _pack_sub_block_nibbles(q)], axis=-1)


def _encode_q6_k(x: Floats) -> Bytes:
    sub = x.reshape(-1, 16, 16)
    scale = _signed_peak(sub)[..., 0] / np.float32(-32)
    d_raw, d = _as_half(_signed_peak(scale) / np.float32(-128))
    scales = _codes(scale, d, -128, 127)
    step = (d * scales.astype(np.float32))[..., None]
    q = (_codes(sub, step, -32, 31) + 32).reshape(-1, 2, 4, 32)
    low = (q[:, :, :2] & 15) | ((q[:, :, 2:] & 15) << 4)
    high = ((q >> 4) << np.arange(0, 8, 2, dtype=np.int32)[None, None, :, None]).sum(axis=2)
    return np.concatenate(
        [
            low.astype(np.uint8).reshape(-1, 128),
            high.astype(np.uint8).reshape(-1, 64),
            scales.astype(np.int8).view(np.uint8),
            d_raw,
        ],
        axis=-1,
    )


_DECODE: dict[str, Callable[[Bytes], Floats]] = {
    "f32": _decode_f32,
    "f16": _decode_f16,
    "bf16": _decode_bf16,
    "q4_0": _decode_q4_0,
    "q4_1": _decode_q4_1,
    "q5_0": _decode_q5_0,
    "q5_1": _decode_q5_1,
    "q8_0": _decode_q8_0,
    "q4_k": _decode_q4_k,
    "q5_k": _decode_q5_k,
    "q6_k": _decode_q6_k,
}

_ENCODE: dict[str, Callable[[Floats], Bytes]] = {
    "f32": _encode_f32,
    "f16": _encode_f16,
    "bf16": _encode_bf16,
    "q4_0": _encode_q4_0,
    "q4_1": _encode_q4_1,
    "q5_0": _encode_q5_0,
    "q5_1": _encode_q5_1,
    "q8_0": _encode_q8_0,
    "q4_k": _encode_q4_k,
    "q5_k": _encode_q5_k,
    "q6_k": _encode_q6_k,
}
