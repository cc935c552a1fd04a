"""Token ids → text, as they come. One `Detokenizer` per request.

Works on token bytes with an incremental UTF-8 decoder: the bytes of a character that is not yet
complete are held, invalid bytes become U+FFFD. The joined results of `push` and `flush` equal
`Tokenizer.decode` of all ids, however they were split. Constant work per token.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from octavo.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental `Tokenizer.decode`.

    at_start: the ids begin a text, so that a SentencePiece model's own leading space is taken off.
        A reply goes on after its prompt: pass False, and its first space stays (and the text then
        agrees byte for byte with what the engine's stop matcher sees).
    """

    __slots__ = ("_bytes", "_decode", "_skipped", "_strip", "_vocab_size")

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, at_start: bool = False
    ) -> None:
        self._bytes = tokenizer.token_bytes
        self._vocab_size = len(self._bytes)
        self._skipped = tokenizer.special if skip_special_tokens else frozenset()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._strip = at_start and tokenizer.strips_leading_space

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete; "" while they only begin a character."""
        table, skipped, size = self._bytes, self._skipped, self._vocab_size
        data = b"".join([table[i] for i in ids if 0 <= i < size and i not in skipped])
        return self._first(self._decode(data)) if data else ""

    def flush(self) -> str:
        """What is held at the end: U+FFFD for a character that was never completed, else ""."""
        return self._first(self._decode(b"", True))

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
