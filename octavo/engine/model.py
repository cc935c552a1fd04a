"""A model on disk, opened: headers read and checked, the program built, no weights read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.config import EngineConfig, ModelFacts
from octavo.models import ModelDef, check_tensors, read_model
from octavo.program import Program, build_program, layout_arena
from octavo.runner import Rows
from octavo.weights import Checkpoint, dequantize, open_checkpoint
from octavo.weights.model_weights import ModelWeights

# Bytes per value in a backend's memory, where they differ from the file's.
_HELD = {
    "native": dict.fromkeys(("q5_0", "q5_1", "q5_k", "q6_k"), 1.25),  # as 8-bit codes and scales
    "reference": {},
}
_REFERENCE_BYTES = 4.0  # everything as float32


@dataclass(frozen=True)
class OpenModel:
    """checkpoint: headers. definition: spec and tensor names. weights: read on request."""

    path: Path
    checkpoint: Checkpoint
    definition: ModelDef
    program: Program
    weights: ModelWeights

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(max_position=self.program.spec.max_position, kv=self.program.kv)

    @property
    def formats(self) -> dict[str, tuple[str, int]]:
        """Canonical tensor name → (format, bytes in the file)."""
        weights = self.weights
        return {
            tensor.name: (weights.dtype(tensor.name), weights.nbytes(tensor.name))
            for tensor in self.program.tensors
        }

    def plan_bytes(self, config: EngineConfig, *, tile: int, sample_rows: int) -> dict[str, int]:
        """What the engine will take, by owner, before anything is taken."""
        program, kv = self.program, self.program.kv
        steps = [(op.reads(), op.writes()) for op in (*program.forward, *program.sample)]
        arena = layout_arena(program.buffers, steps, tile, sample_rows)
        rows = config.max_num_seqs
        return {
            "weights": self._weight_bytes(config.backend),
            "arena": arena.total_bytes,
            "kv_pool": config.num_blocks * kv.block_bytes(config.kv_cache_dtype),
            "rows": Rows.plan_bytes(rows, config.max_model_len, len(kv.groups), kv.block_size),
            "hidden": rows * program.spec.hidden_size * 4,
        }

    def _weight_bytes(self, backend: str) -> int:
        held = _HELD[backend]
        total = 0.0
        for tensor in self.program.tensors:
            values = 1
            for size in tensor.shape:
                values *= size
            dtype = self.weights.dtype(tensor.name)
            if backend == "reference":
                total += values * _REFERENCE_BYTES
            elif len(tensor.shape) == 1:
                total += values * 4
            else:
                total += values * held[dtype] if dtype in held else self.weights.nbytes(tensor.name)
        return int(total)


def open_model(path: Path, *, block_size: int) -> OpenModel:
    """Read the headers of a model and build its program. Raises ModelError subclasses."""
    checkpoint = open_checkpoint(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}

    def read_floats(name: str) -> tuple[float, ...]:
        tensor = checkpoint.tensors[name]
        values = dequantize(checkpoint.read(name), tensor.dtype, tensor.shape)
        return tuple(values.ravel().tolist())

    definition = read_model(
        checkpoint.metadata,
        shapes,
        checkpoint.format,
        where=str(checkpoint.path),
        read_floats=read_floats,
    )
    program = build_program(definition.spec, block_size)
    check_tensors(
        definition.name_of,
        [(tensor.name, tensor.shape) for tensor in program.tensors],
        shapes,
        str(checkpoint.path),
        definition.also_known,
    )
    weights = ModelWeights(checkpoint, definition.name_of)
    return OpenModel(Path(path), checkpoint, definition, program, weights)
