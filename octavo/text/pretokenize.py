"""How byte-level BPE models cut text into words before merging: facts per model family.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`); the patterns themselves are those of the
families' published `tokenizer.json` files. They apply in order; each cuts out its matches and
leaves the text between them as words of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from octavo.base.errors import UnsupportedModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}") -> str:
    """The GPT-4 kind of pattern: contractions, words with one leading sign, `digits`, the rest."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased_words(digits: str, suffix: str) -> str:
    """The GPT-4o kind: a word also ends where lower case is followed by upper case."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """patterns: cut in this order (Oniguruma syntax).

    nfc: text is brought to Unicode NFC first. ignore_merges: a word that is a token is taken whole.
    add_bos: whether BOS is added where the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = PreTokenizer((GPT2_PATTERN,))
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", GPT2_PATTERN))
_FALCON = PreTokenizer((r"[\p{P}$+<=>^~|`]+", GPT2_PATTERN, r"[0-9][0-9][0-9]"))
_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_GPT4 = PreTokenizer((_words(r"\p{N}{1,3}"),))
_QWEN2 = PreTokenizer((_words(r"\p{N}"),), nfc=True)
_QWEN35 = PreTokenizer((_words(r"\p{N}", r"\p{L}\p{M}"),), nfc=True)
_TEKKEN = PreTokenizer((_cased_words(r"\p{N}", ""),), ignore_merges=True, add_bos=True)
_GPT4O = PreTokenizer((_cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),))
_DEFAULT = PreTokenizer((r"[\p{P}$+<=>^~|`]+", GPT2_PATTERN, r"\p{N}+", r"[0-9][0-9][0-9]"))
_DEEPSEEK_CODER = PreTokenizer(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")
)
_DEEPSEEK3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": _DEFAULT,
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "mpt": _GPT2,
        "olmo": _GPT2,
        "exaone4": _GPT2,
        "modern-bert": _GPT2,
        "smollm": _DIGITS_GPT2,
        "starcoder": _DIGITS_GPT2,
        "refact": _DIGITS_GPT2,
        "command-r": replace(_DIGITS_GPT2, nfc=True),
        "codeshell": _DIGITS_GPT2,
        "exaone": _DIGITS_GPT2,
        "minerva-7b": _DIGITS_GPT2,
        "falcon": _FALCON,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama-bpe": _LLAMA3,
        "falcon3": _LLAMA3,
        "pixtral": _LLAMA3,
        "dbrx": _GPT4,
        "smaug-bpe": _GPT4,
        "glm4": _GPT4,
        "chatglm-bpe": _GPT4,
        "qwen2": _QWEN2,
        "megrez": _QWEN2,
        "deepseek-r1-qwen": _QWEN2,
        "stablelm2": _QWEN2,
        "qwen35": _QWEN35,
        "tekken": _TEKKEN,
        "gpt-4o": _GPT4O,
        "llama4": _GPT4O,
        "deepseek-coder": _DEEPSEEK_CODER,
        "deepseek-v3": _DEEPSEEK3,
    }
)


def pre_tokenizer(name: str) -> PreTokenizer:
    """Look one up by its GGUF name. Raises UnsupportedModelError with the known names."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(
            "tokenizer.ggml.pre", value=name, limit=f"one of {known}"
        ) from None
