"""A program as a table that a person can read."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.program.arena import layout_arena
from octavo.program.cost import StepShape, op_cost, program_cost
from octavo.program.ops import Op
from octavo.program.program import Program


def describe(
    program: Program,
    formats: Mapping[str, tuple[str, int]],
    shape: StepShape,
    *,
    kv_bytes: int = 2,
    tile: int = 512,
    sample_rows: int = 32,
) -> str:
    """One line per op for a step of `shape`, then totals, arena and KV per token.

    formats: canonical tensor name → (format, bytes).
    """
    weight_bytes = {name: size for name, (_, size) in formats.items()}
    lines = [
        f"{'op':<12} {'buffers':<28} {'weights':<32} {'read':>10} {'written':>10} {'flops':>9}"
    ]
    for item in (*program.forward, *program.sample):
        cost = op_cost(item, program, shape, weight_bytes, kv_bytes)
        lines.append(
            f"{item.kind:<12} {_buffers(item):<28} {_weights(item, formats):<32} "
            f"{_size(cost.bytes_read):>10} {_size(cost.bytes_written):>10} {_count(cost.flops):>9}"
        )
    total = program_cost(program, shape, weight_bytes, kv_bytes)
    steps = [(i.reads(), i.writes()) for i in (*program.forward, *program.sample)]
    arena = layout_arena(program.buffers, steps, tile, sample_rows)
    kv_token = len(program.spec.layers) * 2 * program.kv.kv_heads * program.kv.head_dim * kv_bytes
    groups = ", ".join(
        f"{len(g.layers)} × {'full' if g.window is None else f'window {g.window}'}"
        for g in program.kv.groups
    )
    lines += [
        "",
        f"step      {shape.tokens} tokens, {shape.rows} sampled, "
        f"context up to {max(shape.contexts, default=0)}",
        f"total     read {_size(total.bytes_read)}, written {_size(total.bytes_written)}, "
        f"{_count(total.flops)} flops",
        f"weights   {_size(sum(weight_bytes.values()))} in {len(weight_bytes)} tensors",
        f"arena     {_size(arena.total_bytes)} for {tile} tokens and {sample_rows} sampled rows",
        f"KV        {_size(kv_token)} per token; block of {program.kv.block_size}: "
        f"{_size(program.kv.block_bytes('bfloat16'))}; groups: {groups}",
    ]
    return "\n".join(lines)


def _buffers(item: Op) -> str:
    return f"{', '.join(item.reads()) or '-'} → {', '.join(item.writes()) or '-'}"


def _weights(item: Op, formats: Mapping[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name}:{formats[name][0]}" for name in item.weights())


def _size(number: int) -> str:
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _count(number: int) -> str:
    value = float(number)
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.0f}{unit}" if unit == "" else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f}T"
