"""Text and tokens: tokenizers, incremental detokenization, stop strings, chat templates."""

from octavo.text.chat import ChatTemplate, normalize_messages
from octavo.text.detokenizer import Detokenizer
from octavo.text.source import TokenizerSource
from octavo.text.stops import Match, StopCutter, StopMatcher
from octavo.text.token_bytes import TokenBytes
from octavo.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Match",
    "StopCutter",
    "StopMatcher",
    "TokenBytes",
    "Tokenizer",
    "TokenizerSource",
    "load_tokenizer",
    "normalize_messages",
]
