"""What a program costs: bytes moved and operations done per op, for a step of a given shape.

A step's rows share one reading of the weights; each row reads its own cached keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.program import ops as op
from octavo.program.ops import Buffer, Op, Per
from octavo.program.program import Program

FLOAT_BYTES = 4


@dataclass(frozen=True)
class StepShape:
    """tokens computed, rows sampled, and for each token how many keys it may see at most."""

    tokens: int
    rows: int
    contexts: tuple[int, ...]

    @classmethod
    def decode(cls, rows: int, context: int) -> StepShape:
        """Every row computes one token after `context − 1` others."""
        return cls(rows, rows, (context,) * rows)

    @classmethod
    def prefill(cls, tokens: int) -> StepShape:
        """One row computes a prompt from its start."""
        return cls(tokens, 1, tuple(range(1, tokens + 1)))


@dataclass(frozen=True)
class Cost:
    """Bytes read and written, floating-point operations (a multiply-add is two)."""

    bytes_read: int
    bytes_written: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.flops + other.flops,
        )


NOTHING = Cost(0, 0, 0)


def op_cost(
    item: Op,
    program: Program,
    shape: StepShape,
    weight_bytes: Mapping[str, int],
    kv_bytes: int,
) -> Cost:
    """Cost of one op. weight_bytes: by canonical name; kv_bytes: per cached value."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    rows = {Per.TOKEN: shape.tokens, Per.ROW: shape.rows}

    def size(name: str) -> int:
        buffer: Buffer = buffers[name]
        return FLOAT_BYTES * buffer.width * rows[buffer.per]

    read = sum(size(name) for name in item.reads())
    written = sum(size(name) for name in item.writes())
    values = written // FLOAT_BYTES
    weights = sum(weight_bytes[name] for name in item.weights())
    if isinstance(item, op.Embed):
        per_row = weight_bytes[item.weight] // program.spec.vocab_size
        return Cost(per_row * shape.tokens, written, values)
    if isinstance(item, op.Linear):
        count = rows[buffers[item.out].per]
        return Cost(read + weights, written, 2 * count * item.n_in * item.n_out)
    if isinstance(item, op.KvStore):
        return Cost(read, read // FLOAT_BYTES * kv_bytes, 0)
    if isinstance(item, op.Attention):
        window = item.window
        seen = sum(min(n, window) if window else n for n in shape.contexts)
        keys = _keys_read(shape, window)
        cached = 2 * keys * item.kv_heads * item.head_dim * kv_bytes
        return Cost(read + cached, written, 4 * seen * item.heads * item.head_dim)
    if isinstance(item, (op.GatherRows, op.LoadRows)):
        moved = FLOAT_BYTES * program.spec.hidden_size * shape.rows
        return Cost(moved, moved, 0)
    if isinstance(item, op.Sample):
        return Cost(read, 4 * shape.rows, 2 * read // FLOAT_BYTES)
    per_value = {op.RmsNorm: 4, op.Rope: 3, op.ActMul: 8, op.Add: 1}[type(item)]
    return Cost(read + weights, written, per_value * values)


def _keys_read(shape: StepShape, window: int | None) -> int:
    """Distinct keys: consecutive tokens of one row (contexts n, n + 1, …) share theirs."""
    total, previous = 0, 0
    for context in shape.contexts:
        seen = min(context, window) if window else context
        total += 1 if context == previous + 1 and previous else seen
        previous = context
    return total


def program_cost(
    program: Program, shape: StepShape, weight_bytes: Mapping[str, int], kv_bytes: int
) -> Cost:
    """Cost of one step: forward and sample."""
    total = NOTHING
    for item in (*program.forward, *program.sample):
        total += op_cost(item, program, shape, weight_bytes, kv_bytes)
    return total
