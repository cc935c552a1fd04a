"""From a program's ops to the native backend's tape.

Three rewrites, each a pattern over neighbouring ops; everything else goes one to one:

    linears that read the same buffer   → one record with up to four weights, one prepared input
    linear, then add of its output      → the linear adds to the residual itself
    row-wise records in a row           → one stage: no barrier between them

Lifetimes are counted in stages, not records: inside a stage different threads are at different
records, so buffers that share a stage never share memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from octavo.backends.native.library import Record
from octavo.program import ops as op
from octavo.program.arena import ArenaLayout, layout_arena
from octavo.program.ops import Buffer, Op, Per
from octavo.program.program import Program


class Kind(IntEnum):
    """Values mirror csrc/tape.h."""

    EMBED = 0
    RMS_NORM = 1
    QUANTIZE = 2
    LINEAR = 3
    ROPE_TABLE = 4
    ROPE = 5
    KV_STORE = 6
    ATTENTION = 7
    ACT_MUL = 8
    ADD = 9
    GATHER = 10
    LOAD = 11
    SAMPLE = 12


_ROW_WISE = frozenset(Kind) - {Kind.LINEAR, Kind.ATTENTION, Kind.GATHER, Kind.SAMPLE}
_ACTS = {"silu": 0, "gelu_tanh": 1}
_FORMS = {1: "q8", 2: "bf16"}  # csrc/linear.h: Act
MOST_WEIGHTS = 4
PANEL_ROWS = 8  # csrc/layout.h: int8 rows lie in panels of this many


@dataclass(frozen=True)
class Step:
    """A record before addresses are known. at: buffers in the order that the kind expects."""

    kind: Kind
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    at: tuple[str, ...]
    weights: tuple[str, ...] = ()
    vectors: tuple[str | None, ...] = ()
    n: tuple[int, ...] = ()
    f: tuple[float, ...] = ()

    def label(self) -> str:
        """What it does, without the layer: "linear q_proj k_proj", "attention"."""
        names = (re.sub(r"^layers\.\d+\.|\.weight$", "", name) for name in self.weights)
        return " ".join((self.kind.name.lower(), *(n for n in names if self.kind is Kind.LINEAR)))


@dataclass
class Lowered:
    """What replays: steps grouped in stages, the buffers they use, and where those lie."""

    forward: list[list[Step]]
    sample: list[list[Step]]
    buffers: list[Buffer]
    frequencies: dict[str, tuple[float, ...]]
    layout: ArenaLayout


@dataclass
class _Lowering:
    """Working state while one op list is lowered."""

    widths: dict[str, Buffer]
    form: Callable[[str], int]
    act_width: Callable[[int, int], int]
    steps: list[Step] = field(default_factory=list)
    extra: dict[str, Buffer] = field(default_factory=dict)
    frequencies: dict[str, tuple[float, ...]] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)  # prepared forms that are current

    def emit(self, step: Step) -> None:
        self.steps.append(step)
        self.fresh -= {act for act in self.fresh if act.rsplit(".", 1)[0] in step.writes}

    def prepare(self, x: str, form: int) -> str:
        """The name of x in a form that kernels read, made now unless it is current."""
        if form == 0:
            return x
        act = f"{x}.{_FORMS[form]}"
        if act not in self.fresh:
            buffer = self.widths[x]
            self.extra[act] = Buffer(act, buffer.per, self.act_width(form, buffer.width))
            self.emit(Step(Kind.QUANTIZE, (x,), (act,), (act, x), n=(buffer.width, form)))
            self.fresh.add(act)
        return act

    def table(self, inv_freq: tuple[float, ...]) -> str:
        """The buffer of cosines and sines for these frequencies, filled at the tape's start."""
        for name, known in self.frequencies.items():
            if known == inv_freq:
                return name
        name = f"rope.{len(self.frequencies)}"
        self.frequencies[name] = inv_freq
        self.extra[name] = Buffer(name, Per.TOKEN, 2 * len(inv_freq))
        half = len(inv_freq)
        first = Step(Kind.ROPE_TABLE, (), (name,), (name,), vectors=(name,), n=(half,))
        self.steps.insert(0, first)
        return name


def lower(
    program: Program,
    form: Callable[[str], int],
    act_bytes: Callable[[int, int], int],
    tile: int,
    sample_rows: int,
) -> Lowered:
    """Lower both programs and lay out the arena.

    form: what a weight's kernels read (0: floats); act_bytes(form, width): bytes of one such row.
    """
    widths = {buffer.name: buffer for buffer in program.buffers}

    def act_width(form: int, width: int) -> int:
        return -(-act_bytes(form, width) // 4)

    parts = [_Lowering(widths, form, act_width) for _ in range(2)]
    for part, ops in zip(parts, (program.forward, program.sample), strict=True):
        _lower_ops(part, ops)
    forward, sample = (_stages(part.steps) for part in parts)
    buffers = {**widths, **parts[0].extra, **parts[1].extra}
    used = {name for stage in (*forward, *sample) for s in stage for name in (*s.reads, *s.writes)}
    kept = [buffer for name, buffer in buffers.items() if name in used]
    spans = [_span(stage) for stage in (*forward, *sample)]
    whole = [-(-rows // PANEL_ROWS) * PANEL_ROWS for rows in (tile, sample_rows)]
    layout = layout_arena(kept, spans, *whole)
    return Lowered(forward, sample, kept, parts[0].frequencies, layout)


def _span(stage: Sequence[Step]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    reads = tuple(dict.fromkeys(name for step in stage for name in step.reads))
    writes = tuple(dict.fromkeys(name for step in stage for name in step.writes))
    return reads, writes


def _stages(steps: Sequence[Step]) -> list[list[Step]]:
    stages: list[list[Step]] = []
    for step in steps:
        if stages and step.kind in _ROW_WISE and stages[-1][-1].kind in _ROW_WISE:
            stages[-1].append(step)
        else:
            stages.append([step])
    return stages


def _lower_ops(low: _Lowering, ops: Sequence[Op]) -> None:
    at = 0
    while at < len(ops):
        current = ops[at]
        if isinstance(current, op.Linear):
            at += _lower_linears(low, ops, at)
        else:
            low.emit(_row_step(low, current))
            at += 1


def _lower_linears(low: _Lowering, ops: Sequence[Op], at: int) -> int:
    """Lower the linears that start at `at`; returns how many ops that took."""
    first = ops[at]
    assert isinstance(first, op.Linear)
    form = low.form(first.weight)
    run = [first]
    for other in ops[at + 1 : at + MOST_WEIGHTS]:
        if not isinstance(other, op.Linear) or other.x != first.x or low.form(other.weight) != form:
            break
        run.append(other)
    taken = len(run)
    residual = None
    if taken == 1:
        residual = _residual(ops, at)
        taken += residual is not None
    act = low.prepare(first.x, form)
    outs = (residual,) if residual is not None else tuple(linear.out for linear in run)
    low.emit(
        Step(
            Kind.LINEAR,
            reads=(act, *outs) if residual is not None else (act,),
            writes=outs,
            at=(act, act, *outs),
            weights=tuple(linear.weight for linear in run),
            vectors=tuple(linear.bias for linear in run),
            n=(first.n_in, form, int(residual is not None)),
        )
    )
    return taken


def _residual(ops: Sequence[Op], at: int) -> str | None:
    """The buffer that ops[at]'s output is added to, if that is the output's only use."""
    linear = ops[at]
    assert isinstance(linear, op.Linear)
    following = ops[at + 1] if at + 1 < len(ops) else None
    if not isinstance(following, op.Add) or following.b != linear.out:
        return None
    if following.out != following.a or following.a == linear.out:
        return None
    for later in ops[at + 2 :]:
        if linear.out in later.reads():
            return None
        if linear.out in later.writes():
            break
    return following.out


def _row_step(low: _Lowering, item: Op) -> Step:
    reads, writes = item.reads(), item.writes()
    if isinstance(item, op.Embed):
        return Step(Kind.EMBED, reads, writes, (item.out,), weights=(item.weight,), f=(item.scale,))
    if isinstance(item, op.RmsNorm):
        row = low.widths[item.x].width
        return Step(
            Kind.RMS_NORM,
            reads,
            writes,
            (item.out, item.x),
            vectors=(item.weight,),
            n=(item.width, row // item.width, row),
            f=(item.eps, item.offset),
        )
    n: tuple[int, ...]
    if isinstance(item, op.Rope):
        table = low.table(item.inv_freq)
        n = (item.heads, item.head_dim, len(item.inv_freq), int(item.interleaved))
        return Step(Kind.ROPE, (*reads, table), writes, (item.x, table), n=n)
    if isinstance(item, op.KvStore):
        return Step(Kind.KV_STORE, reads, writes, (item.k, item.v), n=(item.group, item.layer))
    if isinstance(item, op.Attention):
        n = (item.group, item.layer, item.heads, item.window or 0)
        return Step(Kind.ATTENTION, reads, writes, (item.out, item.q), n=n, f=(item.scale,))
    if isinstance(item, op.ActMul):
        n = (low.widths[item.gate].width, _ACTS[item.act])
        return Step(Kind.ACT_MUL, reads, writes, (item.out, item.gate, item.up), n=n)
    if isinstance(item, op.Add):
        n = (low.widths[item.a].width,)
        return Step(Kind.ADD, reads, writes, (item.out, item.a, item.b), n=n)
    if isinstance(item, op.GatherRows):
        return Step(Kind.GATHER, reads, writes, (item.x,))
    if isinstance(item, op.LoadRows):
        return Step(Kind.LOAD, reads, writes, (item.out,))
    if isinstance(item, op.Sample):
        return Step(Kind.SAMPLE, reads, writes, (item.logits,))
    raise NotImplementedError(f"the native backend has no {item.kind}")


def write_tape(
    stages: Sequence[Sequence[Step]],
    layout: ArenaLayout,
    weights: dict[str, int],
    vectors: dict[str, int],
) -> tuple[Record, ...]:
    """Steps to records, with addresses and the indexes of loaded weights and vectors."""
    records: list[Record] = []
    for stage in stages:
        for position, step in enumerate(stage):
            record = Record(kind=step.kind, new_stage=int(position == 0))
            record.weight[:] = [-1] * 4
            record.vector[:] = [-1] * 4
            for i, name in enumerate(step.weights):
                record.weight[i] = weights[name]
            for i, vector in enumerate(step.vectors):
                record.vector[i] = -1 if vector is None else vectors[vector]
            for i, number in enumerate(step.n):
                record.n[i] = number
            for i, value in enumerate(step.f):
                record.f[i] = value
            for i, buffer in enumerate(step.at):
                record.at[i] = layout.offsets[buffer]
            records.append(record)
    return tuple(records)
