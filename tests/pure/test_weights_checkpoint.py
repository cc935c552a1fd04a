"""Checkpoints: safetensors headers, bytes on request, identity, what lies beside the weights."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.base.errors import (
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from octavo.weights import dequantize, open_checkpoint
from octavo.weights.safetensors import read_safetensors_header
from tests.support.gguf_file import write_gguf
from tests.support.safetensors_file import write_raw, write_safetensors
from tests.support.tiny_models import CHATML, tiny_llama_gguf

F4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def folder_with(path: Path, **files: Any) -> Path:
    """A safetensors folder; names use __ for a dot."""
    path.mkdir(exist_ok=True)
    write_safetensors(path / "model.safetensors", {"w": ("bf16", np.ones((2, 3), np.float32))})
    files.setdefault("config__json", {"model_type": "llama"})
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


def sharded(path: Path, weight_map: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    ones = ("f32", np.ones(4, np.float32))
    write_safetensors(path / "model-00001-of-00002.safetensors", {"a": ones, "b": ones})
    write_safetensors(path / "model-00002-of-00002.safetensors", {"c": ones})
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


WEIGHT_MAP = {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors",
}


# Safetensors ------------------------------------------------------------------------------------


def test_safetensors_values_round_trip(tmp_path: Path) -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    tensors = {"a": ("f32", x), "b": ("f16", x), "c": ("bf16", x[:2])}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.format == "safetensors" and checkpoint.metadata == {"hidden_size": 4}
    for name, (dtype, array) in tensors.items():
        info = checkpoint.tensors[name]
        assert (info.shape, info.dtype) == (array.shape, dtype)
        got = dequantize(checkpoint.read(name), info.dtype, info.shape)
        assert np.abs(got - array).max() <= {"f32": 0, "f16": 1e-3, "bf16": 1e-2}[dtype]


LIES: dict[str, tuple[object, str]] = {
    "list": ([], "header"),
    "dtype number": ({"t": F4 | {"dtype": 3}}, "tensor 't' dtype"),
    "extra key": ({"t": F4 | {"x": 1}}, "tensor 't'"),
    "no shape": ({"t": {"dtype": "F32"}}, "tensor 't'"),
    "not an object": ({"t": 4}, "tensor 't'"),
    "float shape": ({"t": F4 | {"shape": [4.0]}}, "tensor 't' shape"),
    "bool shape": ({"t": F4 | {"shape": [True]}}, "tensor 't' shape"),
    "negative": ({"t": F4 | {"shape": [-4]}}, "tensor 't' shape"),
    "scalar": ({"t": F4 | {"shape": []}}, "tensor 't' dimensions"),
    "many dims": ({"t": F4 | {"shape": [1, 1, 1, 1, 4]}}, "tensor 't' dimensions"),
    "huge": ({"t": F4 | {"shape": [2**40, 2**40]}}, "tensor 't' shape"),
    "zero": ({"t": F4 | {"shape": [0]}}, "tensor 't' shape"),
    "size": ({"t": F4 | {"shape": [3]}}, "tensor 't' data_offsets"),
    "three offsets": ({"t": F4 | {"data_offsets": [0, 8, 16]}}, "tensor 't' data_offsets"),
    "backwards": ({"t": F4 | {"data_offsets": [16, 0]}}, "tensor 't' data_offsets"),
    "past the end": ({"t": F4 | {"data_offsets": [17, 33]}}, "tensor 't' data_offsets"),
    "far past": ({"t": F4 | {"data_offsets": [2**70, 2**70 + 16]}}, "tensor 't' data_offsets"),
    "overlap": ({"t": F4, "u": F4 | {"data_offsets": [8, 24]}}, "tensor 'u' offset"),
    "metadata": ({"__metadata__": {"a": 1}}, "__metadata__"),
}


@pytest.mark.parametrize("case", LIES)
def test_each_safetensors_lie_is_named(tmp_path: Path, case: str) -> None:
    header, field = LIES[case]
    path = write_raw(tmp_path / "model.safetensors", header, bytes(32))
    with pytest.raises(ModelFileError) as caught:
        read_safetensors_header(path)
    assert caught.value.file == str(path)
    assert caught.value.field.startswith(field), caught.value


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"", "header length"),
        (b"\x02\0\0", "header length"),
        (b"\xff" * 16, "header length"),
        ((2**60).to_bytes(8, "little") + b"{}", "header length"),
        ((9).to_bytes(8, "little") + b"{}", "header length"),
        ((2).to_bytes(8, "little") + b"{x", "header"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "header"),
        ((17).to_bytes(8, "little") + b'{"a": 1, "a": 2 }', "header key 'a'"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "header"),
    ],
)
def test_safetensors_headers_that_are_no_headers(tmp_path: Path, raw: bytes, field: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError) as caught:
        read_safetensors_header(path)
    assert caught.value.field == field


def test_safetensors_cut_or_changed_anywhere_loads_or_lies(tmp_path: Path) -> None:
    ones = np.ones((2, 3), np.float32)
    path = write_safetensors(tmp_path / "m.safetensors", {"a": ("f32", ones), "b": ("f16", ones)})
    raw = path.read_bytes()
    mutants = [raw[:n] for n in range(len(raw))]
    refused = 0
    rng = np.random.default_rng(0)
    for _ in range(300):
        mutant = bytearray(raw)
        mutant[rng.integers(len(raw))] = rng.integers(256)
        mutants.append(bytes(mutant))
    for index, mutant in enumerate(mutants):
        path.write_bytes(mutant)
        tracemalloc.start()
        try:
            read_safetensors_header(path)
            assert index >= len(raw), "a cut file cannot load"
        except (ModelFileError, UnsupportedModelError):
            refused += 1
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 200_000
    assert refused > len(raw)


def test_other_safetensors_types_are_named(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m", {"w": F4 | {"dtype": "F8_E4M3"}}, bytes(16))
    with pytest.raises(UnsupportedModelError, match=r"'w' has type F8_E4M3.*F32, F16, BF16"):
        read_safetensors_header(path)


def test_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(sharded(tmp_path / "m", WEIGHT_MAP))
    assert {n: t.file.name for n, t in checkpoint.tensors.items()} == WEIGHT_MAP
    assert checkpoint.read("c").view("<f4").tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"c": "../c.safetensors"}, "weight_map 'c'"),
        ({"c": "/etc/c.safetensors"}, "weight_map 'c'"),
        ({"c": "sub/c.safetensors"}, "weight_map 'c'"),
        ({"c": "..\\c.safetensors"}, "weight_map 'c'"),
        ({"c": "passwd"}, "weight_map 'c'"),
        ({"c": 3}, "weight_map 'c'"),
        ({"c": "model-00001-of-00002.safetensors"}, "weight_map 'c'"),
        ({"d": "model-00002-of-00002.safetensors"}, "weight_map 'd'"),
        ({"c": "absent.safetensors"}, "file"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(sharded(tmp_path / "m", WEIGHT_MAP | change))
    assert caught.value.field == field


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", WEIGHT_MAP)
    ones = ("f32", np.ones(4, np.float32))
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"a": ones, "c": ones})
    with pytest.raises(ModelFileError, match="tensor 'a'"):
        open_checkpoint(folder)


# Checkpoints ------------------------------------------------------------------------------------


def test_gguf_as_file_or_as_the_only_one_of_a_folder(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "m.gguf")
    for given in (path, tmp_path):
        checkpoint = open_checkpoint(given)
        assert (checkpoint.path, checkpoint.format) == (path, "gguf")
        assert checkpoint.chat_template == CHATML
        assert checkpoint.generation_config == {} == checkpoint.tokenizer_config
        assert checkpoint.tokenizer_json is None
    tiny_llama_gguf(tmp_path / "n.gguf")
    with pytest.raises(ModelError, match=r"several GGUF.*m\.gguf.*n\.gguf"):
        open_checkpoint(tmp_path)


def test_places_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model here"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_checkpoint(tmp_path / "absent")
    folder = folder_with(tmp_path / "m")
    with pytest.raises(ModelError, match="pass its folder"):
        open_checkpoint(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_checkpoint(folder)


def test_reading_is_exact_fresh_and_refuses_wrong_buffers(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": ("f32", x), "v": ("q8_0", x)})
    checkpoint = open_checkpoint(path)
    first, second = checkpoint.read("w"), checkpoint.read("w")
    first[:] = 0
    assert second.tobytes() == x.tobytes() and second.flags.writeable
    out = np.zeros((3, 64), np.float32)
    checkpoint.read_into("w", out)
    assert np.array_equal(out, x)
    buffer = bytearray(checkpoint.tensors["v"].nbytes)
    checkpoint.read_into("v", memoryview(buffer))
    assert bytes(buffer) == checkpoint.read("v").tobytes()
    with pytest.raises(ValueError, match="767 bytes for 768"):
        checkpoint.read_into("w", np.zeros(767, np.uint8))
    with pytest.raises(KeyError):
        checkpoint.read("absent")
    assert checkpoint.nbytes == 768 + len(buffer)


def test_a_file_that_changes_after_opening_is_refused(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(path)
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(ModelFileError, match="the file opened before"):
        checkpoint.read("output_norm.weight")
    path.unlink()
    with pytest.raises(ModelFileError, match="No such file"):
        checkpoint.read("output_norm.weight")


def test_content_id_follows_content_and_nothing_else(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "m.gguf", hidden=256, heads=16)
    known = open_checkpoint(path).content_id
    assert len(known) == 64 and int(known, 16)
    (tmp_path / "copy").mkdir()
    copy = tiny_llama_gguf(tmp_path / "copy" / "other.gguf", hidden=256, heads=16)
    os.utime(copy, (1, 1))
    assert open_checkpoint(copy).content_id == known
    assert open_checkpoint(tiny_llama_gguf(copy, hidden=256, heads=16, seed=1)).content_id != known
    tensors = open_checkpoint(path).tensors.values()
    raw = path.read_bytes()
    large = max(tensors, key=lambda t: t.nbytes)
    assert large.nbytes > 3 * 4096
    for at in (large.offset, large.offset + large.nbytes // 2, large.offset + large.nbytes - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert open_checkpoint(path).content_id != known
    small = min(tensors, key=lambda t: t.nbytes)
    at = small.offset + small.nbytes // 3
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    assert open_checkpoint(path).content_id != known


def test_content_id_of_a_folder_includes_its_config(tmp_path: Path) -> None:
    one = open_checkpoint(folder_with(tmp_path / "a"))
    two = open_checkpoint(folder_with(tmp_path / "b"))
    other = open_checkpoint(folder_with(tmp_path / "c", config__json={"rope_theta": 1}))
    assert one.content_id == two.content_id != other.content_id


def test_files_beside_the_weights(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path / "m",
        generation_config__json={"temperature": 0.6},
        tokenizer_config__json={"chat_template": "from config", "bos_token": "<s>"},
        tokenizer__json={},
    )
    checkpoint = open_checkpoint(folder)
    assert checkpoint.generation_config == {"temperature": 0.6}
    assert checkpoint.tokenizer_config["bos_token"] == "<s>"
    assert checkpoint.tokenizer_json == folder / "tokenizer.json"
    assert checkpoint.chat_template == "from config"
    (folder / "chat_template.jinja").write_text("from file")
    assert open_checkpoint(folder).chat_template == "from file"


def test_named_chat_templates(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    config = {"chat_template": named}
    folder = folder_with(tmp_path / "m", tokenizer_config__json=config)
    assert open_checkpoint(folder).chat_template == "d"
    folder_with(folder, tokenizer_config__json={"chat_template": named[:1]})
    assert open_checkpoint(folder).chat_template is None
    folder_with(folder, tokenizer_config__json={"chat_template": 7})
    with pytest.raises(ModelFileError, match="chat_template: got 7"):
        _ = open_checkpoint(folder).chat_template


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": 1, "a": 2}', "[" * 100_000])
def test_a_broken_config_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_checkpoint(folder_with(tmp_path / "m", config__json=content))
