from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, serving
from tests.support.tiny_models import tiny_llama_gguf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model: its text is noise, its behaviour is not."""
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_llama_gguf(path, context=512)
    return str(path)


@pytest.fixture(scope="session")
def server(tiny: str) -> Iterator[Server]:
    flags = ("--served-model-name", "tiny", "--request-read-timeout-s", "1", "--max-num-seqs", "32")
    with serving(tiny, *flags) as running:
        yield running
