"""The benchmarks drive the real thing: they run, and what they report adds up."""

from __future__ import annotations

from pathlib import Path

from octavo.backends import native
from octavo.bench import ops
from octavo.bench.loop import step_us
from octavo.engine.model import open_model
from tests.support.tiny_models import tiny_llama_gguf


def test_a_step_of_the_loop_costs_something() -> None:
    assert 0 < step_us(3, 20) < 1e6


def test_stages_add_up_to_the_calls(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_llama_gguf(path)
    model = open_model(path, block_size=16)
    backend = native.load(model.program, model.weights, ops.limits_for(model, 1))
    try:
        step = ops.measure(backend, model, ops.StepShape(2, 3, 20), 5)
    finally:
        backend.close()
    assert 0 < sum(step.stages.values()) < 2 * step.total_s
    assert {"attention", "sample"} <= set(step.stages)
    layers = sum(
        op.n_in * op.n_out for op in model.program.forward if type(op).__name__ == "Linear"
    )
    head = model.program.spec.vocab_size * model.program.spec.hidden_size
    assert step.linear_ops == 2 * (layers * 6 + head * 2)
    text = ops.table(step, 1000, native.Ceilings(1e9, 1e12))
    assert text[0].startswith("2 × 3 @ 20: forward")
    assert len(text) == 1 + len(step.stages)


def test_the_ceilings_are_measured() -> None:
    found = native.measure_ceilings(2, 4 * 2**20)
    assert found.read_bytes_per_s > 1e8
    assert found.int8_ops_per_s > 1e8
