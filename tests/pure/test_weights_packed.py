"""The cache of packed weights: whole files or none, damage is absence, the folder is bounded."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from octavo.weights import packed
from octavo.weights.packed import HEADER_BYTES, PackedCache, PackedWriter, packed_key

WEIGHTS = bytes(range(256)) * 40
GO = threading.Event()  # never set
KEY = packed_key("model", 1)


def stored(folder: Path) -> PackedCache:
    cache = PackedCache(folder)
    assert cache.store(KEY, memoryview(WEIGHTS), 77, GO)
    return cache


def test_what_was_stored_is_found_whole(tmp_path: Path) -> None:
    cache = stored(tmp_path / "packed")
    found = cache.open(KEY, len(WEIGHTS))
    assert found is not None
    assert found.checksum == 77
    assert os.pread(found.fd, len(WEIGHTS) + 1, HEADER_BYTES) == WEIGHTS
    os.close(found.fd)
    assert cache.open(packed_key("model", 2), len(WEIGHTS)) is None
    assert [path.suffix for path in cache.folder.iterdir()] == [".packed"]


def test_a_key_tells_kinds_and_borders_apart() -> None:
    keys = [("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", ""), ("1",), (1,), (b"1",)]
    assert len({packed_key(*parts) for parts in keys}) == len(keys)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b"y" + path.read_bytes()[1:]),
        lambda path: path.write_bytes(path.read_bytes()[:20] + b"z" + path.read_bytes()[21:]),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_damaged_file_is_absent_and_removed(tmp_path: Path, damage: object) -> None:
    cache = stored(tmp_path)
    (path,) = tmp_path.iterdir()
    damage(path)  # type: ignore[operator]
    assert cache.open(KEY, len(WEIGHTS)) is None
    assert not path.exists()


def test_a_file_of_another_size_is_absent(tmp_path: Path) -> None:
    assert stored(tmp_path).open(KEY, len(WEIGHTS) - 1) is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    size = HEADER_BYTES + len(WEIGHTS)
    cache = PackedCache(tmp_path, most_bytes=3 * size)
    keys = [packed_key(i) for i in range(4)]
    for age, key in enumerate(keys[:3]):
        assert cache.store(key, memoryview(WEIGHTS), 0, GO)
        os.utime(cache._path(key), (1000 + age, 1000 + age))
    used = cache.open(keys[0], len(WEIGHTS))  # now the latest
    assert used is not None
    os.close(used.fd)
    assert cache.store(keys[3], memoryview(WEIGHTS), 0, GO)
    assert [cache._path(key).exists() for key in keys] == [True, False, True, True]
    assert not PackedCache(tmp_path, most_bytes=size - 1).store(KEY, memoryview(WEIGHTS), 0, GO)


def test_half_written_files_are_removed_when_they_are_old(tmp_path: Path) -> None:
    old, new, other = tmp_path / ".a.part", tmp_path / ".b.part", tmp_path / "notes.txt"
    for path in (old, new, other):
        path.write_bytes(b"x")
    os.utime(old, (1000, 1000))
    stored(tmp_path)
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_a_stopped_writer_leaves_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert not PackedCache(tmp_path).store(KEY, memoryview(WEIGHTS), 0, stop)
    assert list(tmp_path.iterdir()) == []
    PackedWriter(PackedCache(tmp_path), KEY, memoryview(WEIGHTS), 5).close()
    assert all(path.suffix == ".packed" for path in tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    assert not PackedCache(blocked / "packed").store(KEY, memoryview(WEIGHTS), 0, GO)
    assert PackedCache(blocked / "packed").open(KEY, 1) is None


def test_a_nearly_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 2 * len(WEIGHTS)

    monkeypatch.setattr(packed.shutil, "disk_usage", lambda folder: Usage)
    assert not PackedCache(tmp_path).store(KEY, memoryview(WEIGHTS), 0, GO)
    assert list(tmp_path.iterdir()) == []
