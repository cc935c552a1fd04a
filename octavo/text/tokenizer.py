"""Text ↔ token ids, and the bytes that each id adds to the text.

`tokenizers` does the encoding. Decoding is ours and works on bytes: the bytes of all ids joined,
then UTF-8 with U+FFFD for what is invalid, so that the incremental `Detokenizer` and `decode` agree
for every sequence of ids. (`tokenizers` agrees on byte-level models and on all valid text; for
SentencePiece byte tokens that are not UTF-8 it writes one U+FFFD per byte.)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from octavo.base.errors import ModelFileError, RequestError, UnsupportedModelError
from octavo.text import cache
from octavo.text.rebuild import BYTE_PIECES, PREFIX, rebuild, tokenizer_model
from octavo.text.source import TokenizerSource
from octavo.text.token_bytes import TokenBytes, byte_level_bytes, sentencepiece_bytes

if TYPE_CHECKING:
    import tokenizers

# Tokens that end a turn in chat models. A GGUF file often names only the text's EOS.
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")


class Tokenizer:
    """One model's tokenizer. Safe to share between threads.

    vocab_size: one more than the highest id. A model's logits may be wider (padding).
    bos_id: None if the model has none. eos_ids: every id that ends a text, first the model's own.
    special: ids that `skip_special_tokens` leaves out of the text.
    chat_template: Jinja source, or None.
    strips_leading_space: a text that begins with a space was encoded with one more (SentencePiece
        models with a space prefix), so decoding from the start of a text takes one off.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> None:
        self._inner = inner
        inner.no_truncation()
        inner.no_padding()
        added = inner.get_added_tokens_decoder()
        self._added = frozenset(added)
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.vocab_size = max(
            inner.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1
        )
        self.bos_id = bos_id
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.chat_template = chat_template
        self._byte_level, self.strips_leading_space = _decoder_facts(inner)
        self._token_bytes: TokenBytes | None = None
        self._lock = threading.Lock()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`.

        Special tokens that are written out in `text` become their ids, which is what rendered chat
        templates need. `add_special_tokens` adds what the model wants around a text (BOS); pass
        False for a rendered template, which has it already.
        Raises RequestError (`prompt`) if `text` is not Unicode text (lone surrogates).
        """
        try:
            ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError(
                "prompt", param="prompt", value=text, limit="text without lone surrogates"
            ) from None
        return ids

    def decode(
        self, ids: Iterable[int], skip_special_tokens: bool = True, *, at_start: bool = True
    ) -> str:
        """Text of `ids`; ids outside the vocabulary add nothing.

        at_start: the ids begin a text. False for ids that go on after others (a reply after its
        prompt), whose leading space is a real one.
        """
        text = b"".join(
            self.bytes_of(i, skip_special_tokens=skip_special_tokens) for i in ids
        ).decode("utf-8", "replace")
        return text[1:] if at_start and self.strips_leading_space and text[:1] == " " else text

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes of every id, special ones included; made on first use."""
        if self._token_bytes is None:
            with self._lock:
                if self._token_bytes is None:
                    self._token_bytes = self._make_token_bytes()
        return self._token_bytes

    def _make_token_bytes(self) -> TokenBytes:
        name = self._inner.id_to_token
        pieces = [name(i) or "" for i in range(self.vocab_size)]
        if self._byte_level:
            return byte_level_bytes(pieces, self._added)
        byte_ids = ((self.id_of(piece), byte) for byte, piece in enumerate(BYTE_PIECES))
        return sentencepiece_bytes(pieces, {i: byte for i, byte in byte_ids if i is not None})

    def bytes_of(self, token_id: int, *, skip_special_tokens: bool = True) -> bytes:
        """What `token_id` adds to the output; b"" for a skipped or unknown id."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        if skip_special_tokens and token_id in self.special:
            return b""
        return self.token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """The id's own bytes as text, special or not (U+FFFD for a part of a character)."""
        return self.bytes_of(token_id, skip_special_tokens=False).decode("utf-8", "replace")

    def piece(self, token_id: int) -> str | None:
        """The id's name in the vocabulary (`Ġthe`, `▁the`, `<0x0A>`), or None."""
        if not 0 <= token_id < self.vocab_size:
            return None
        name: str | None = self._inner.id_to_token(token_id)
        return name

    def id_of(self, piece: str) -> int | None:
        """The id of a vocabulary entry, written as `piece` returns it."""
        token_id: int | None = self._inner.token_to_id(piece)
        return token_id


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Read `tokenizer.json`, or rebuild from GGUF metadata (kept in the cache by content).

    Raises ModelFileError for damaged files, UnsupportedModelError for kinds octavo does not know.
    """
    if source.tokenizer_json is not None:
        return _from_json(source)
    if source.gguf is not None:
        return _from_gguf(source, source.gguf)
    raise UnsupportedModelError(
        "the model brings no tokenizer", remedy="add tokenizer.json beside its weights"
    )


def _from_json(source: TokenizerSource) -> Tokenizer:
    from tokenizers import Tokenizer as Inner

    path = source.tokenizer_json
    assert path is not None
    config = source.tokenizer_config
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(path, "file", found=error.strerror, expected="readable") from None
    try:
        inner = Inner.from_buffer(data)
    except Exception as error:  # the library raises bare Exception for anything wrong in the file
        raise ModelFileError(
            path, "content", found=str(error), expected="a `tokenizers` file"
        ) from None
    _add_declared(inner, config, path)
    bos = _config_token(inner, config, "bos_token")
    eos = _config_token(inner, config, "eos_token")
    return Tokenizer(
        inner,
        bos_id=bos,
        eos_ids=([] if eos is None else [eos]) + _generation_eos(source.generation_config),
        chat_template=source.chat_template or _config_template(config),
    )


def _add_declared(inner: tokenizers.Tokenizer, config: Mapping[str, Any], path: object) -> None:
    """Add tokens that only `added_tokens_decoder` of the config has, under the ids it names."""
    from tokenizers import AddedToken

    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    declared = config.get("added_tokens_decoder") or {}
    try:
        tokens = sorted((int(key), str(entry["content"]), entry) for key, entry in declared.items())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ModelFileError(
            "tokenizer_config.json", "added_tokens_decoder", found=declared, expected="tokens by id"
        ) from None
    for key, content, entry in tokens:
        if inner.token_to_id(content) is None:
            inner.add_tokens([AddedToken(content, **{f: bool(entry.get(f, False)) for f in flags})])
            got = inner.token_to_id(content)
            if got != key:
                raise ModelFileError(
                    path, f"added token {content!r}", found=f"id {got}", expected=f"id {key}"
                )


def _config_token(inner: tokenizers.Tokenizer, config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    content = value.get("content") if isinstance(value, Mapping) else value
    token_id: int | None = inner.token_to_id(content) if isinstance(content, str) else None
    return token_id


def _config_template(config: Mapping[str, Any]) -> str | None:
    """A string, or a list of named templates of which "default" is meant."""
    value = config.get("chat_template")
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, Mapping)]
        value = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _generation_eos(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ModelFileError(
            "generation_config.json", "eos_token_id", found=value, expected="a token id or a list"
        )
    return list(ids)


def _from_gguf(source: TokenizerSource, meta: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer as Inner

    tokenizer_model(meta)  # refuse an unknown kind before anything is hashed
    inner = None
    key = ""
    if source.cache_dir is not None:
        key = cache.content_key(meta, source.content_id)
        text = cache.read(source.cache_dir, key)
        inner = None if text is None else _read_cached(text)
    if inner is None:
        text = rebuild(meta)
        inner = Inner.from_buffer(text)
        if source.cache_dir is not None:
            cache.write(source.cache_dir, key, text)
    return Tokenizer(
        inner,
        bos_id=_optional_int(meta.get(PREFIX + "bos_token_id")),
        eos_ids=_gguf_eos(inner, meta, source.generation_config),
        chat_template=source.chat_template or meta.get("tokenizer.chat_template"),
    )


def _gguf_eos(
    inner: tokenizers.Tokenizer, meta: Mapping[str, Any], config: Mapping[str, Any]
) -> list[int]:
    """The file's ids, the config's, and without a config the special tokens that end a turn."""
    named = [meta.get(f"{PREFIX}{name}_token_id") for name in ("eos", "eot", "eom")]
    known = [int(i) for i in named if i is not None] + _generation_eos(config)
    if not config:
        special = {i for i, token in inner.get_added_tokens_decoder().items() if token.special}
        known += [i for i in map(inner.token_to_id, _END_OF_TURN) if i in special]
    return known


def _read_cached(text: bytes) -> tokenizers.Tokenizer | None:
    from tokenizers import Tokenizer as Inner

    try:
        return Inner.from_buffer(text)
    except Exception:  # written by a library that read another format: rebuild
        return None


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _decoder_facts(inner: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """(byte level, takes a leading space off), from the file's decoder.

    Raises UnsupportedModelError for decoders that are neither byte-level nor SentencePiece.
    """
    state = json.loads(inner.decoder.__getstate__()) if inner.decoder is not None else {}
    steps = state.get("decoders", []) if state.get("type") == "Sequence" else [state]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return True, False
    if kinds == ["Metaspace"]:
        return False, steps[0].get("prepend_scheme", "always") != "never"
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        strips = [step for step in steps if step["type"] == "Strip"]
        return False, any(step.get("content") == " " and step.get("start") == 1 for step in strips)
    raise UnsupportedModelError(
        "tokenizer decoder", value=kinds, limit="byte-level BPE or SentencePiece"
    )
