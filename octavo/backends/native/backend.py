"""The native backend: a program lowered once to a tape that the C++ library replays."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.api import (
    BackendLimits,
    Float32,
    ForwardBatch,
    Int32,
    RowSampling,
    SampleBatch,
    SampleOutput,
    WeightSource,
)
from octavo.backends.native.kept import Packed
from octavo.backends.native.library import (
    FORMATS,
    Batch,
    Dims,
    Drawn,
    Record,
    RowArguments,
    load_library,
    select_isa,
)
from octavo.backends.native.lower import PANEL_ROWS, Lowered, lower, write_tape
from octavo.base.errors import EngineError, EngineStartError, UnsupportedModelError
from octavo.base.step import NOT_SAMPLED, TokenLogprobs
from octavo.program.ops import Embed, Linear
from octavo.program.program import Program
from octavo.weights.packed import PackedWriter
from octavo.weights.quant import dequantize

_KV_TYPES = {"bfloat16": 0, "int8": 1}  # csrc/kv.h: KvType


def load(
    program: Program,
    weights: WeightSource,
    limits: BackendLimits,
    *,
    isa: str | None = None,
    packed: Packed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NativeBackend:
    """Plan the memory, take it, pack the weights in parallel. progress(done, total) in tensors.

    packed: where packed weights are kept from start to start; None: they are packed anew.
    """
    library = load_library()
    chosen = select_isa(library, isa)
    return NativeBackend(library, chosen, program, weights, limits, packed, progress)


def _pointer(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


class NativeBackend:
    """See `Backend`. Calls block with the GIL released; one thread may call at a time."""

    name = "native"

    def __init__(
        self,
        library: c.CDLL,
        isa: str,
        program: Program,
        weights: WeightSource,
        limits: BackendLimits,
        packed: Packed | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.isa = isa
        self._library = library
        self._program = program
        self._limits = limits
        self._kv_dtype = "bfloat16" if limits.kv_dtype == "auto" else limits.kv_dtype
        self._matrices = _matrices(program)
        self._lowered = self._lower(weights)
        weight_bytes = self._plan_weights(weights)
        self._dims = self._plan(weight_bytes)
        self._model = library.octavo_model_new(c.byref(self._dims))
        if not self._model:
            text = library.octavo_last_error().decode()
            raise EngineStartError(f"the native backend cannot take its memory: {text}")
        self._scratch_bytes = int(library.octavo_scratch_bytes(self._model))
        self._writer: PackedWriter | None = None
        try:
            self._load(weights, packed, progress)
        except BaseException:
            self.close()
            raise
        self._drawn = (Drawn * limits.sample_rows)()

    def _lower(self, weights: WeightSource) -> Lowered:
        library = self._library

        def form(name: str) -> int:
            return int(library.octavo_weight_act(FORMATS[weights.dtype(name)]))

        def act_bytes(form: int, width: int) -> int:
            return -(-int(library.octavo_act_bytes(form, PANEL_ROWS, width)) // PANEL_ROWS)

        limits = self._limits
        return lower(self._program, form, act_bytes, limits.tile, limits.sample_rows)

    def _plan_weights(self, weights: WeightSource) -> int:
        total = sum(_aligned(8 * len(f)) for f in self._lowered.frequencies.values())
        for tensor in self._program.tensors:
            if tensor.name not in self._matrices:
                total += _aligned(4 * int(np.prod(tensor.shape)))
                continue
            dtype = weights.dtype(tensor.name)
            rows, width = tensor.shape
            size = self._library.octavo_weight_bytes(FORMATS[dtype], rows, width)
            if size < 0:
                raise UnsupportedModelError(
                    f"{tensor.name}: {dtype} with rows of {width} values",
                    remedy="the width must be a multiple of the format's block",
                )
            total += _aligned(size)
        return total

    def _plan(self, weight_bytes: int) -> Dims:
        program, limits, kv = self._program, self._limits, self._program.kv
        return Dims(
            threads=max(1, limits.threads),
            max_rows=limits.max_rows,
            max_blocks=-(-limits.max_len // kv.block_size),
            groups=len(kv.groups),
            num_blocks=limits.num_blocks,
            block_size=kv.block_size,
            kv_heads=kv.kv_heads,
            head_dim=kv.head_dim,
            layers_per_group=kv.layers_per_group,
            tile=limits.tile,
            sample_rows=limits.sample_rows,
            hidden=program.spec.hidden_size,
            vocab=program.spec.vocab_size,
            heads=program.spec.num_heads,
            kv_type=_KV_TYPES[self._kv_dtype],
            arena_bytes=self._lowered.layout.total_bytes,
            weight_bytes=weight_bytes,
        )

    def _load(
        self,
        weights: WeightSource,
        packed: Packed | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        tensors = self._program.tensors
        kept = None
        if packed is not None:
            kept = packed.entry(self._library, self._model, self._program, weights)
        brought = kept is not None and kept.read()
        matrices: dict[str, int] = {}
        vectors: dict[str, int] = {}
        for name, frequencies in self._lowered.frequencies.items():
            exact = np.asarray(frequencies, np.float64)
            high = exact.astype(np.float32)
            pairs = np.stack((high, (exact - high).astype(np.float32)), axis=1)
            vectors[name] = self._add_vector(pairs, pairs.size)
        for done, tensor in enumerate(tensors):
            raw = None if brought else weights.read(tensor.name)
            dtype = weights.dtype(tensor.name)
            if tensor.name in self._matrices:
                rows, width = tensor.shape
                source = None if raw is None else _pointer(raw)
                index = self._library.octavo_add_weight(
                    self._model, FORMATS[dtype], rows, width, source
                )
                matrices[tensor.name] = self._checked(index)
            else:
                values = None if raw is None else dequantize(raw, dtype, tensor.shape)
                size = int(np.prod(tensor.shape))
                vectors[tensor.name] = self._add_vector(values, size)
            if progress is not None:
                progress(done + 1, len(tensors))
        if kept is not None and not brought:
            self._writer = kept.write()
        for which, stages in enumerate((self._lowered.forward, self._lowered.sample)):
            records = write_tape(stages, self._lowered.layout, matrices, vectors)
            array = (Record * len(records))(*records)
            self._checked(
                self._library.octavo_set_tape(self._model, which, c.byref(array), len(records))
            )

    def _add_vector(self, values: NDArray[Any] | None, size: int) -> int:
        if values is None:  # it is in place already
            return self._checked(self._library.octavo_add_vector(self._model, None, size))
        flat = np.ascontiguousarray(values, np.float32).ravel()
        assert flat.size == size
        return self._checked(self._library.octavo_add_vector(self._model, _pointer(flat), size))

    def _checked(self, code: int) -> int:
        if code < 0:
            text = self._library.octavo_last_error().decode()
            raise EngineError(f"native backend: {text or 'a call failed'}")
        return code

    def set_row(self, row: int, sampling: RowSampling) -> None:
        ends = np.cumsum([len(word) for word in sampling.bad_words], dtype=np.int32)
        words = (
            np.concatenate(sampling.bad_words).astype(np.int32)
            if sampling.bad_words
            else np.empty(0, np.int32)
        )
        allowed = sampling.allowed_ids
        arguments = RowArguments(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition=sampling.repetition_penalty,
            presence=sampling.presence_penalty,
            frequency=sampling.frequency_penalty,
            top_k=sampling.top_k,
            prompt_len=sampling.prompt_len,
            min_len=sampling.min_len,
            num_logprobs=sampling.num_logprobs,
            seed=sampling.seed,
            stops=len(sampling.stop_ids),
            biases=len(sampling.bias_ids),
            alloweds=-1 if allowed is None else len(allowed),
            bad_tokens=len(words),
            bad_words=len(ends),
            stop_ids=_pointer(sampling.stop_ids),
            bias_ids=_pointer(sampling.bias_ids),
            allowed_ids=None if allowed is None else _pointer(allowed),
            bad_ids=_pointer(words),
            bad_ends=_pointer(ends),
            bias=_pointer(sampling.bias_values),
        )
        # The call copies everything that it points to.
        self._checked(self._library.octavo_set_row(self._model, row, c.byref(arguments)))

    def forward(self, batch: ForwardBatch) -> None:
        assert len(batch.tokens) <= self._limits.tile, "more tokens than the arena holds"
        arguments = Batch(
            rows=len(batch.tokens),
            sequences=len(batch.seq_row),
            gathers=len(batch.gather_row),
            tokens=_pointer(batch.tokens),
            positions=_pointer(batch.positions),
            seq_start=_pointer(batch.seq_start),
            seq_row=_pointer(batch.seq_row),
            seq_len=_pointer(batch.seq_len),
            tables=_pointer(batch.block_tables),
            gather_token=_pointer(batch.gather_token),
            gather_row=_pointer(batch.gather_row),
        )
        self._checked(self._library.octavo_forward(self._model, c.byref(arguments)))

    def sample(self, batch: SampleBatch) -> SampleOutput:
        tokens = np.empty(len(batch.rows), np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        for start in range(0, len(batch.rows), self._limits.sample_rows):
            rows = batch.rows[start : start + self._limits.sample_rows]
            arguments = Batch(
                rows=len(rows),
                sample_row=_pointer(rows),
                row_tokens=_pointer(batch.row_tokens),
                row_lens=_pointer(batch.row_lens),
                row_stride=batch.row_tokens.shape[1],
                drawn=c.addressof(self._drawn),
            )
            self._checked(self._library.octavo_sample(self._model, c.byref(arguments)))
            for i in range(len(rows)):
                drawn = self._drawn[i]
                tokens[start + i] = drawn.token
                if drawn.rank > 0:
                    logprobs[start + i] = _logprobs(drawn)
        assert NOT_SAMPLED == -1, "the library and the step contract share this value"
        return SampleOutput(tokens, logprobs)

    def logits(self, rows: Int32) -> Float32:
        out = np.empty((len(rows), self._dims.vocab), np.float32)
        for start in range(0, len(rows), self._limits.sample_rows):
            part = np.ascontiguousarray(rows[start : start + self._limits.sample_rows])
            arguments = Batch(rows=len(part), sample_row=_pointer(part))
            self._checked(
                self._library.octavo_logits(
                    self._model, c.byref(arguments), _pointer(out[start : start + len(part)])
                )
            )
        return out

    def stage_times(self) -> dict[str, float]:
        """Seconds by kind of stage since the last call, of both programs.

        Waiting for the slowest thread counts. The first call returns zeros and begins to measure.
        """
        found: dict[str, float] = {}
        for which, stages in enumerate((self._lowered.forward, self._lowered.sample)):
            seconds = np.zeros(len(stages), np.float64)
            assert self._library.octavo_stages(self._model, which) == len(stages)
            self._library.octavo_stage_times(self._model, which, _pointer(seconds))
            for stage, value in zip(stages, seconds, strict=True):
                label = " + ".join(dict.fromkeys(step.label() for step in stage))
                found[label] = found.get(label, 0.0) + float(value)
        return found

    def memory(self) -> Mapping[str, int]:
        dims, kv = self._dims, self._program.kv
        return {
            "weights": dims.weight_bytes,
            "arena": dims.arena_bytes,
            "kv_pool": dims.num_blocks * kv.block_bytes(self._kv_dtype),
            "hidden": dims.max_rows * dims.hidden * 4,
            "scratch": self._scratch_bytes,
        }

    def close(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.close()
        model, self._model = getattr(self, "_model", None), None
        if model:
            self._library.octavo_model_free(model)


def _matrices(program: Program) -> frozenset[str]:
    """Tensors that linears and embeddings read; the rest are vectors, held in float32."""
    names = [
        op.weight for op in (*program.forward, *program.sample) if isinstance(op, (Linear, Embed))
    ]
    return frozenset(names)


def _logprobs(drawn: Drawn) -> TokenLogprobs:
    count = drawn.tops
    return TokenLogprobs(
        logprob=drawn.logprob,
        rank=drawn.rank,
        top_ids=np.array(drawn.top_id[:count], np.int32),
        top=np.array(drawn.top[:count], np.float32),
    )
