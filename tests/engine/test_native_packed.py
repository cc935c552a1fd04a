"""Weights from the packed cache: the same bits as packed anew, and never damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends import native
from octavo.backends.native import kept
from octavo.engine.model import open_model
from octavo.weights.packed import HEADER_BYTES, PackedCache
from tests.support.real_models import OneRow


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LEAST_BYTES", 0)


def logits(path: Path, packed: native.Packed | None) -> tuple[np.ndarray, bool]:
    """Logits after some tokens, and whether the weights were packed anew and kept."""
    model = open_model(path, block_size=4)
    backend = native.load(model.program, model.weights, OneRow.limits(model, 64), packed=packed)
    try:
        writer = backend._writer
        if writer is not None:
            writer._thread.join()
        return OneRow(backend, model, 64).feed([5, 9, 40, 7, 11]), writer is not None
    finally:
        backend.close()


@pytest.mark.usefixtures("small_files")
def test_a_second_start_reads_what_the_first_packed(tiny_llama: Path, tmp_path: Path) -> None:
    expected, _ = logits(tiny_llama, None)
    packed = native.Packed(PackedCache(tmp_path), "one")
    first, packed_anew = logits(tiny_llama, packed)
    assert packed_anew
    second, packed_again = logits(tiny_llama, packed)
    assert not packed_again
    assert np.array_equal(first, expected)
    assert np.array_equal(second, expected)
    _, other = logits(tiny_llama, native.Packed(PackedCache(tmp_path), "another"))
    assert other


@pytest.mark.usefixtures("small_files")
def test_a_flipped_bit_is_seen_and_the_weights_are_packed_anew(
    tiny_llama: Path, tmp_path: Path
) -> None:
    packed = native.Packed(PackedCache(tmp_path), "one")
    expected, _ = logits(tiny_llama, packed)
    (file,) = tmp_path.iterdir()
    whole = bytearray(file.read_bytes())
    for at in (HEADER_BYTES, (HEADER_BYTES + len(whole)) // 2, len(whole) - 1):
        damaged = whole.copy()
        damaged[at] ^= 1
        file.write_bytes(damaged)
        got, packed_anew = logits(tiny_llama, packed)
        assert packed_anew
        assert np.array_equal(got, expected)


def test_small_weights_are_not_kept(tiny_llama: Path, tmp_path: Path) -> None:
    _, kept_anew = logits(tiny_llama, native.Packed(PackedCache(tmp_path), "one"))
    assert not kept_anew
    assert list(tmp_path.iterdir()) == []
