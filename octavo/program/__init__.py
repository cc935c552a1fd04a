"""Ops over named buffers: what a forward pass is, before a backend lowers it."""

from octavo.program.arena import ArenaLayout, layout_arena
from octavo.program.build import build_program, kv_layout, tensor_specs
from octavo.program.cost import Cost, StepShape, op_cost, program_cost
from octavo.program.describe import describe
from octavo.program.program import KvGroup, KvLayout, Program, TensorSpec

__all__ = [
    "ArenaLayout",
    "Cost",
    "KvGroup",
    "KvLayout",
    "Program",
    "StepShape",
    "TensorSpec",
    "build_program",
    "describe",
    "kv_layout",
    "layout_arena",
    "op_cost",
    "program_cost",
    "tensor_specs",
]
