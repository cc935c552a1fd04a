"""Paged attention of the native backend: against the reference, and bit-equal however it is cut."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends import native, reference
from octavo.backends.api import Backend, BackendLimits, ForwardBatch
from octavo.backends.native import available_isas, load_library
from octavo.program import ops as op
from octavo.program.ops import Buffer, Op, Per
from octavo.program.program import KvGroup, KvLayout, Program
from tests.support.op_programs import Tensors, int32, one_op_program

HERE = available_isas(load_library())
Float32 = NDArray[np.float32]
LENGTH = 300
ROWS = 3
INV_FREQ = tuple(float(10000.0 ** (-2 * i / 16)) for i in range(8))


def attention_program(
    heads: int, kv_heads: int, dim: int, window: int | None, block_size: int, interleaved: bool
) -> tuple[Program, dict[str, Float32]]:
    """embed → q, k, v by plain float32 linears → rope → store → attention."""
    layout = KvLayout((KvGroup(window, (0,)),), block_size, kv_heads, dim)
    rng = np.random.default_rng(heads * dim)
    width = heads * dim
    sizes = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    arrays = {
        f"w{n}": (rng.standard_normal((size, width)) / np.sqrt(width)).astype(np.float32) * 2
        for n, size in sizes.items()
    }
    arrays["embed"] = rng.standard_normal((LENGTH, width)).astype(np.float32)
    ops: list[Op] = [op.Linear(n, "x", f"w{n}", width, size) for n, size in sizes.items()]
    ops += [op.Rope("q", heads, dim, INV_FREQ, interleaved)]
    ops += [op.Rope("k", kv_heads, dim, INV_FREQ, interleaved)]
    ops += [
        op.KvStore("k", "v", 0, 0),
        op.Attention("y", "q", 0, 0, heads, kv_heads, dim, dim**-0.5, window),
    ]
    buffers = [Buffer(n, Per.TOKEN, size) for n, size in (*sizes.items(), ("y", width))]
    shapes = {name: array.shape for name, array in arrays.items()}
    program = one_op_program(
        width, width, ops, "y", shapes, buffers=buffers, kv=layout, heads=heads
    )
    return program, arrays


class Driver:
    """Runs chunks of rows, remembering each row's length; block tables are shuffled."""

    def __init__(self, backend: Backend, program: Program, seed: int = 0) -> None:
        self.backend = backend
        self.size = program.kv.block_size
        blocks = -(-LENGTH // self.size)
        order = np.random.default_rng(seed).permutation(ROWS * blocks)
        self.tables = int32(order.reshape(1, ROWS, blocks))
        self.lengths = [0] * ROWS

    def step(self, counts: dict[int, int]) -> dict[int, Float32]:
        """Compute `counts[row]` more tokens of each row; the last token's output by row."""
        rows = list(counts)
        starts = np.concatenate([[0], np.cumsum([counts[row] for row in rows])])
        positions = np.concatenate(
            [np.arange(self.lengths[row], self.lengths[row] + counts[row]) for row in rows]
        )
        for row in rows:
            self.lengths[row] += counts[row]
        # Row r's token at position p is table row (p + r) of the embedding.
        tokens = np.concatenate(
            [
                (np.arange(self.lengths[row] - counts[row], self.lengths[row]) + row) % LENGTH
                for row in rows
            ]
        )
        self.backend.forward(
            ForwardBatch(
                tokens=int32(tokens),
                positions=int32(positions),
                seq_start=int32(starts),
                seq_row=int32(rows),
                seq_len=int32([self.lengths[row] for row in rows]),
                block_tables=self.tables,
                gather_token=int32(starts[1:] - 1),
                gather_row=int32(rows),
            )
        )
        return dict(zip(rows, self.backend.logits(int32(rows)), strict=True))


def limits_for(program: Program, threads: int = 2, kv_dtype: str = "auto") -> BackendLimits:
    blocks = -(-LENGTH // program.kv.block_size)
    return BackendLimits(
        max_rows=ROWS,
        max_len=blocks * program.kv.block_size,
        num_blocks=ROWS * blocks,
        tile=512,
        sample_rows=4,
        threads=threads,
        kv_dtype=kv_dtype,
    )


SHAPES = [
    (4, 2, 16, None, 16, False),
    (3, 1, 48, 20, 16, True),
    (9, 3, 64, None, 16, True),
    (4, 1, 256, 100, 32, False),
    (2, 2, 16, 1, 2, False),
    (6, 2, 24, 70, 8, False),
]


# Keys and values are held with 8 bits of mantissa, or as one of 255 steps of their largest.
KV_ERROR = {"bfloat16": 0.03, "int8": 0.06}


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kv_dtype", KV_ERROR)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_equals_the_reference(
    shape: tuple[int, int, int, int | None, int, bool], kv_dtype: str, isa: str
) -> None:
    program, arrays = attention_program(*shape)
    tensors = Tensors(arrays, {})
    plain = Driver(reference.load(program, tensors, limits_for(program)), program)
    backend = native.load(program, tensors, limits_for(program, kv_dtype=kv_dtype), isa=isa)
    fast = Driver(backend, program)
    try:
        for counts in ({0: 1}, {0: 30, 1: 17}, {1: 100, 2: 64, 0: 1}, {0: 1, 1: 1, 2: 1}, {2: 150}):
            expected, got = plain.step(counts), fast.step(counts)
            for row, want in expected.items():
                most = KV_ERROR[kv_dtype] * np.abs(want).max()
                np.testing.assert_allclose(got[row], want, atol=most)
    finally:
        backend.close()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kv_dtype", KV_ERROR)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_bit_equal_however_it_is_cut_and_whoever_is_beside_it(
    shape: tuple[int, int, int, int | None, int, bool], kv_dtype: str, isa: str
) -> None:
    program, arrays = attention_program(*shape)
    length = 280

    def run(plan: list[dict[int, int]], threads: int, seed: int) -> list[Float32]:
        limits = limits_for(program, threads, kv_dtype)
        backend = native.load(program, Tensors(arrays, {}), limits, isa=isa)
        driver = Driver(backend, program, seed)
        try:
            found = []
            for counts in plan:
                out = driver.step(counts)
                if 0 in out:
                    found.append((driver.lengths[0], out[0]))
            return [array for end, array in found if end in (length - 20, length)]
        finally:
            backend.close()

    one_by_one = run([{0: 1}] * length, 1, 0)
    whole = run([{0: length - 20}, {0: 20}], 2, 1)
    beside = run([{1: 90}, {0: 37, 1: 3}, {0: 223, 2: 200}, {1: 7, 0: 20, 2: 1}], 3, 2)
    for other in (whole, beside):
        assert len(other) == 2
        for a, b in zip(one_by_one, other, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("kv_dtype", KV_ERROR)
def test_foreign_memory_cannot_reach_a_result(kv_dtype: str) -> None:
    """A pool full of NaN: what a row has not written must not weigh in, not even as 0 · NaN."""
    program, arrays = attention_program(4, 2, 16, 20, 16, False)
    poisoned = {**arrays, "embed": arrays["embed"].copy()}
    poisoned["embed"][200:] = np.nan
    outputs = []
    for table in (arrays, poisoned):
        limits = limits_for(program, kv_dtype=kv_dtype)
        backend = native.load(program, Tensors(table, {}), limits)
        driver = Driver(backend, program)
        driver.lengths[1] = 0
        driver.step({1: 199})
        driver.step({1: 60})  # tokens 200…: NaN in the poisoned table
        driver.tables[0, 0] = driver.tables[0, 1]  # row 0 takes row 1's used blocks over
        outputs.append(driver.step({0: 50})[0])
        backend.close()
    assert np.isfinite(outputs[1]).all()
    assert np.array_equal(outputs[0], outputs[1])
