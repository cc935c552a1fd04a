"""What a tokenizer is made from. The caller that opened the model fills it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where one model's tokenizer comes from: a `tokenizer.json`, or else GGUF metadata.

    tokenizer_json: path of a `tokenizers` file; wins over `gguf`.
    tokenizer_config: content of `tokenizer_config.json`, or empty.
    gguf: GGUF metadata by key; arrays may be lists, numpy arrays or lazy sequences.
    generation_config: content of `generation_config.json`, or empty (`eos_token_id`: int or list).
    chat_template: Jinja source that wins over the one in `tokenizer_config` or `gguf`.
    content_id: a name that changes whenever the model's metadata changes (a content hash), used as
        the cache key where a lazy array cannot show its raw bytes; "" if there is none.
    cache_dir: rebuilt tokenizers are kept under `cache_dir/tokenizers`; None turns that off.
    """

    tokenizer_json: Path | None = None
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    gguf: Mapping[str, Any] | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    content_id: str = ""
    cache_dir: Path | None = None
