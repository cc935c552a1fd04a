"""The hub through the real huggingface_hub, against a small server that speaks its protocol."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOS = {
    "org/safe": {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"never wanted",
        "README.md": b"never wanted",
    },
    "org/one": {"README.md": b"x", "one.gguf": b"gguf bytes"},
    "org/many": {"a.gguf": b"A", "b.gguf": b"B"},
}
PROGRAM = """
import json, sys
from octavo.base.errors import OctavoError
from octavo.weights import cached_hub_models, resolve_model
for ref in json.loads(sys.argv[1]):
    try:
        path = resolve_model(ref)
        names = sorted(f.name for f in path.iterdir()) if path.is_dir() else path.read_text()
        print(json.dumps(names))
    except OctavoError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
print(json.dumps([model.ref for model in cached_hub_models()]))
"""


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.api("/".join(parts[2:4]), parts[4:])
        else:
            content = REPOS.get("/".join(parts[:2]), {}).get("/".join(parts[4:]))
            self.answer(200 if content is not None else 404, content or b"")

    def api(self, repo: str, rest: list[str]) -> None:
        files = REPOS.get(repo)
        if files is None or (len(rest) > 1 and rest[1] not in ("main", COMMIT)):
            what = "Repo" if files is None else "Revision"
            self.answer(404, b"{}", {"X-Error-Code": f"{what}NotFound"})
        elif rest[:1] == ["tree"]:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in files.items()
            ]
            self.answer(200, json.dumps(tree).encode())
        else:
            siblings = [{"rfilename": name} for name in files]
            info = {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False}
            self.answer(200, json.dumps(info).encode())

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = hashlib.sha256(body).hexdigest()
        base = {"Content-Length": str(len(body)), "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        for name, value in (base | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def resolve(refs: list[str], home: Path, **variables: str) -> list[object]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment = keep | {"HF_HOME": str(home), "NO_PROXY": "127.0.0.1"} | variables
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(refs)],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_hub(endpoint: str, tmp_path: Path) -> None:
    refs = [
        "org/safe", "hf:org/one", "org/many", "org/many/b.gguf", "org/absent", "org/safe@v9",
        "org/safe/absent.gguf",
    ]  # fmt: skip
    safe, one, many, named, absent, revision, file, cached = resolve(
        refs, tmp_path, HF_ENDPOINT=endpoint
    )
    assert safe == ["config.json", "model.safetensors", "tokenizer.json"]
    assert one == "gguf bytes" and named == "B"
    assert str(many).startswith("ModelError: hf:org/many has several GGUF files")
    assert str(absent).startswith("ModelNotFoundError: hf:org/absent")
    assert str(revision).startswith("ModelNotFoundError: hf:org/safe@v9")
    assert str(file).startswith("ModelNotFoundError: hf:org/safe")
    assert cached == ["org/many/b.gguf", "org/one/one.gguf", "org/safe"]

    # Offline, and with nothing at the other end: what is cached still resolves.
    offline = {"HF_HUB_OFFLINE": "1"}, "ModelNotFoundError: hf:org/absent: not in the hub's cache"
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}, "ModelError: hf:org/absent: download failed"
    for variables, message in (offline, nowhere):
        safe, named, one, absent, _ = resolve(
            ["org/safe", "org/many/b.gguf", "org/one", "org/absent"], tmp_path, **variables
        )
        assert safe == ["config.json", "model.safetensors", "tokenizer.json"]
        assert named == "B" and one == ["one.gguf"]
        assert str(absent).startswith(message)
