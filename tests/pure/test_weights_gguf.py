"""The GGUF header reader: reads what the `gguf` package writes and refuses every lie by name."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.base.errors import ModelFileError, UnsupportedModelError
from octavo.weights import gguf as reader
from octavo.weights.gguf import LazyStrings, read_gguf_header
from octavo.weights.quant import quantize
from tests.support.gguf_file import write_gguf
from tests.support.tiny_models import tiny_gemma3_gguf, tiny_llama_gguf


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, code: int, raw: bytes) -> bytes:
    return string(name) + struct.pack("<I", code) + raw


def tensor(name: str, dims: list[int], code: int = 0, offset: int = 0) -> bytes:
    head = string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return head + struct.pack("<IQ", code, offset)


def built(
    keys: list[bytes], tensors: list[bytes], data: int = 0, *, version: int = 3, align: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    tensor_count, key_count = counts or (len(tensors), len(keys))
    raw = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count)
    raw += b"".join(keys) + b"".join(tensors)
    return raw + bytes(-len(raw) % align) + bytes(data)


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    """A valid file with a value of every kind and three tensors."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "a.bool": True,
        "a.negative": -3,
        "a.float": 0.5,
        "a.big": np.uint64(2**40),
        "a.strings": ["x", "", "héé", "日本"],
        "a.ints": np.arange(5, dtype=np.int32),
        "a.flags": np.array([True, False]),
    }
    tensors = {
        "one": ("f32", np.ones(3, np.float32)),
        "two": ("q4_0", np.ones((2, 32), np.float32)),
        "three": ("bf16", np.ones((1, 2, 5), np.float32)),
    }
    return write_gguf(tmp_path / "small.gguf", metadata, tensors).read_bytes()


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint64("n.u64", 2**63)
    writer.add_int8("n.i8", -8)
    writer.add_float64("n.f64", 0.1)
    writer.add_bool("n.bool", False)
    writer.add_array("n.names", ["a", "ü", ""])
    writer.add_array("n.numbers", [1, 2, 3])
    writer.add_array("n.nested", [[1, 2], [3]])
    rows = np.arange(64, dtype=np.float32).reshape(2, 32)
    packed = quantize(rows, "q8_0").reshape(2, -1)
    writer.add_tensor("w.f32", rows)
    writer.add_tensor("w.q8", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(path)
    metadata = header.metadata
    assert metadata["general.architecture"] == "llama"
    assert (metadata["n.u64"], metadata["n.i8"], metadata["n.f64"]) == (2**63, -8, 0.1)
    assert metadata["n.bool"] is False
    assert metadata["n.names"] == ["a", "ü", ""]
    assert metadata["n.numbers"].tolist() == [1, 2, 3]
    assert [inner.tolist() for inner in metadata["n.nested"]] == [[1, 2], [3]]
    raw = path.read_bytes()
    f32, q8 = header.tensors["w.f32"], header.tensors["w.q8"]
    assert (f32.shape, f32.dtype, f32.nbytes) == ((2, 32), "f32", 256)
    assert raw[f32.offset : f32.offset + f32.nbytes] == rows.tobytes()
    assert (q8.shape, q8.dtype) == ((2, 32), "q8_0")
    assert raw[q8.offset : q8.offset + q8.nbytes] == packed.tobytes()


@pytest.mark.parametrize("write", [tiny_llama_gguf, tiny_gemma3_gguf])
def test_tiny_models_read_the_same_through_both_readers(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path / "tiny.gguf")
    header, theirs = read_gguf_header(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if name.startswith("GGUF."):
            continue
        ours = header.metadata[name]
        expected = field.contents()
        assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == expected, name
    assert {t.name for t in theirs.tensors} == set(header.tensors)
    for their in theirs.tensors:
        our = header.tensors[their.name]
        assert our.shape == tuple(reversed([int(n) for n in their.shape]))
        assert (our.dtype, our.offset, our.nbytes) == (
            their.tensor_type.name.lower(), their.data_offset, their.n_bytes,
        )  # fmt: skip
    tokens = list(header.metadata["tokenizer.ggml.tokens"])
    assert len(set(tokens)) == len(tokens) == len(header.metadata["tokenizer.ggml.token_type"])


def test_header_may_span_many_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FIRST_READ_BYTES", 7)
    words = [f"word {i} {'x' * (i % 50)}" for i in range(500)]
    tensors = {"t": ("f32", np.ones(4, np.float32))}
    header = read_gguf_header(write_gguf(tmp_path / "m.gguf", {"words": words}, tensors))
    assert list(header.metadata["words"]) == words and set(header.tensors) == {"t"}


def test_lazy_strings_are_a_sequence(tmp_path: Path, small: bytes) -> None:
    strings = read_gguf_header(tmp_path / "small.gguf").metadata["a.strings"]
    assert isinstance(strings, LazyStrings)
    assert list(strings) == ["x", "", "héé", "日本"] and len(strings) == 4
    assert (strings[0], strings[-1], strings[1:3]) == ("x", "日本", ["", "héé"])
    assert strings.index("héé") == 2 and "日本" in strings and strings != ["x"]
    with pytest.raises(IndexError):
        strings[4]


def test_bad_utf8_in_a_string_array_is_found_when_decoded(tmp_path: Path) -> None:
    raw = struct.pack("<IQ", 8, 2) + string("ok") + string(b"\xff\xfe")
    path = tmp_path / "m.gguf"
    path.write_bytes(built([key("words", 9, raw)], []))
    words = read_gguf_header(path).metadata["words"]
    assert words[0] == "ok"
    with pytest.raises(ModelFileError, match=r"words'\[1\].*UTF-8"):
        list(words)


U32_9 = struct.pack("<I", 9)
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "magic"),
    "magic": (b"GGML" + bytes(20), "magic"),
    "version 1": (built([], [], version=1), "version"),
    "2**60 tensors": (built([], [], counts=(2**60, 0)), "tensor count"),
    "2**60 keys": (built([], [], counts=(0, 2**60)), "key count"),
    "one key too many": (built([], [], counts=(0, 1)), "key count"),
    "long key": (built([struct.pack("<Q", 2**50) + bytes(9)], []), "key 0 length"),
    "bad utf-8 key": (built([string(b"\xff") + struct.pack("<IB", 0, 1)], []), "key 0"),
    "key twice": (built([key("k", 4, U32_9)] * 2, []), "key 1"),
    "value type": (built([key("k", 13, U32_9)], []), "key 'k' type"),
    "bool 2": (built([key("k", 7, b"\x02")], []), "key 'k'"),
    "long string": (built([key("k", 8, struct.pack("<Q", 2**62))], []), "key 'k' length"),
    "string past end": (built([key("k", 8, struct.pack("<Q", 99))], []), "key 'k'"),
    "bad utf-8 value": (built([key("k", 8, string(b"\xc3("))], []), "key 'k'"),
    "array type": (built([key("k", 9, struct.pack("<IQ", 77, 0))], []), "key 'k' item type"),
    "array count": (built([key("k", 9, struct.pack("<IQ", 4, 2**61))], []), "key 'k' length"),
    "string count": (built([key("k", 9, struct.pack("<IQ", 8, 2**61))], []), "key 'k' length"),
    "string extent": (
        built([key("k", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 2**63))], []),
        "key 'k'[0] length",
    ),
    "deep arrays": (built([key("k", 9, struct.pack("<IQ", 9, 1) * 9)], []), "key 'k'[0][0] depth"),
    "alignment 3": (
        built([key("general.alignment", 4, struct.pack("<I", 3))], []),
        "general.align",
    ),
    "alignment 0": (built([key("general.alignment", 4, bytes(4))], []), "general.alignment"),
    "dims 0": (built([], [tensor("t", [])]), "tensor 't' dimensions"),
    "dims 5": (built([], [tensor("t", [1] * 5)]), "tensor 't' dimensions"),
    "dims 2**32-1": (built([], [string("t") + b"\xff" * 40]), "tensor 't' dimensions"),
    "zero size": (built([], [tensor("t", [0, 4])], 64), "tensor 't' shape"),
    "huge product": (built([], [tensor("t", [2**40, 2**40])], 64), "tensor 't' shape"),
    "type code": (built([], [tensor("t", [4], 99)], 64), "tensor 't' type"),
    "part of a block": (built([], [tensor("t", [33], 2)], 64), "tensor 't' shape"),
    "unaligned": (built([], [tensor("t", [4], 0, 8)], 64), "tensor 't' offset"),
    "past the end": (built([], [tensor("t", [4], 0, 64)], 64), "tensor 't' end"),
    "offset 2**64-32": (built([], [tensor("t", [4], 0, 2**64 - 32)], 64), "tensor 't' end"),
    "too long": (built([], [tensor("t", [17])], 64), "tensor 't' end"),
    "overlap": (built([], [tensor("t", [9]), tensor("u", [4], 0, 32)], 96), "tensor 'u' offset"),
    "name twice": (built([], [tensor("t", [4]), tensor("t", [4], 0, 32)], 96), "tensor names"),
}


@pytest.mark.parametrize("case", LIES)
def test_each_lie_is_named(tmp_path: Path, case: str) -> None:
    raw, field = LIES[case]
    path = tmp_path / "lie.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError) as caught:
        read_gguf_header(path)
    error = caught.value
    assert error.file == str(path) and error.field.startswith(field), error
    assert error.expected and error.found is not None


def test_types_that_octavo_does_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(built([], [tensor("blk.0.w", [256], 10)], 96))
    with pytest.raises(UnsupportedModelError, match=r"'blk.0.w' has type Q2_K.*Q4_0.*Q6_K"):
        read_gguf_header(path)


def test_big_endian_and_split_files_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(UnsupportedModelError, match="big-endian"):
        read_gguf_header(path)
    path.write_bytes(built([key("split.count", 2, struct.pack("<H", 4))], []))
    with pytest.raises(UnsupportedModelError, match=r"got 4.*merge"):
        read_gguf_header(path)


def test_version_2_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(built([], [tensor("t", [4])], 16, version=2))
    assert read_gguf_header(path).version == 2
    with pytest.raises(ModelFileError, match="No such file"):
        read_gguf_header(tmp_path / "absent.gguf")


def _loads_or_lies(path: Path, raw: bytes) -> bool:
    """Whether `raw` loads; anything but the two model errors, or much memory, fails the test."""
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        header = read_gguf_header(path)
        for value in header.metadata.values():
            if isinstance(value, LazyStrings):
                list(value)
        for info in header.tensors.values():
            assert info.offset + info.nbytes <= len(raw)
    except (ModelFileError, UnsupportedModelError):
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000 + 20 * len(raw)
    return True


def test_truncation_at_every_byte(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "cut.gguf"
    # The last tensor's 20 bytes end 12 bytes before the padded end of the file.
    loaded = [n for n in range(len(small) + 1) if _loads_or_lies(path, small[:n])]
    assert loaded == list(range(len(small) - 12, len(small) + 1))


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4))
def test_random_bytes_flipped(tmp_path: Path, small: bytes, changes: list[tuple[int, int]]) -> None:
    raw = bytearray(small)
    for where, value in changes:
        raw[where % len(raw)] = value
    _loads_or_lies(tmp_path / "flip.gguf", bytes(raw))


def test_every_byte_set_to_all_ones(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "ones.gguf"
    for at in range(len(small)):
        _loads_or_lies(path, small[:at] + b"\xff" + small[at + 1 :])


def test_a_file_that_claims_much_and_is_long_costs_little(tmp_path: Path) -> None:
    """A sparse 1 TiB file lets the counts pass the size check; the limits still hold."""
    path = tmp_path / "sparse.gguf"
    for raw in (
        built([key("k", 8, struct.pack("<Q", 2**35))], []),
        built([key("k", 9, struct.pack("<IQ", 4, 2**36))], []),
        built([], [], counts=(2**30, 0)),
        built([], [], counts=(0, 2**30)),
        built([key("k", 9, struct.pack("<IQ", 9, 2**30))], []),
    ):
        path.write_bytes(raw)
        os.truncate(path, 2**40)
        tracemalloc.start()
        try:
            with pytest.raises(ModelFileError):
                read_gguf_header(path)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_0", "q5_1", "q4_k", "q5_k", "q6_k"])
def test_tiny_models_come_in_every_format_and_any_vocabulary(tmp_path: Path, dtype: str) -> None:
    path = tiny_llama_gguf(
        tmp_path / "m.gguf", dtype, vocab=301, hidden=256, heads=16, ffn=256, tied=False
    )
    header = read_gguf_header(path)
    assert len(header.metadata["tokenizer.ggml.tokens"]) == header.metadata["llama.vocab_size"]
    assert header.tensors["output.weight"].shape == (301, 256)
    assert {t.dtype for t in header.tensors.values()} == {"f32", dtype}
    with pytest.raises(ValueError, match="the tokenizer alone has"):
        tiny_llama_gguf(path, vocab=100)
