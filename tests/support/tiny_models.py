"""Tiny random checkpoints with the metadata that real files of their kind have.

    tiny_llama_gguf    llama architecture, byte-level BPE tokenizer (as SmolLM2), chat template
    tiny_gemma3_gguf   gemma3 architecture, SentencePiece tokenizer with byte fallback

The same arguments give the same file. Weights are normal/sqrt(fan_in) in `dtype`, norms near 1
in f32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.gguf_file import write_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Tensors = dict[str, tuple[str, np.ndarray]]

# Pairs of byte-level symbols, each of which exists before it is merged (Ġ is a space).
BPE_MERGES = [
    "Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "r e", "Ġ s", "l l", "Ġ w", "o r", "Ġw or",
    "Ġwor l", "Ġworl d", "H e", "He ll", "Hell o", "a n", "an d", "Ġ and", "Ġ o", "Ġo f", "in g",
]  # fmt: skip

SP_WORDS = [
    "▁t", "he", "▁the", "in", "▁a", "er", "on", "re", "▁s", "ll", "▁w", "or", "▁wor", "▁worl",
    "▁world", "He", "Hell", "Hello", "an", "and", "▁and", "▁o", "▁of", "ing", "lo", "ello",
]  # fmt: skip
SP_CHARACTERS = "▁etaoinshrdlcumwfgypbvkjxqzHETAOINSRDLCUMWFGYPBVKJXQZ0123456789.,!?'\"-:;()\n"


def byte_level_alphabet() -> list[str]:
    """The 256 printable stand-ins of GPT-2's byte-level BPE, by byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def bpe_tokens() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges of the small byte-level BPE."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merged = ["".join(merge.split()) for merge in BPE_MERGES]
    tokens = [*special, *byte_level_alphabet(), *merged]
    return tokens, [CONTROL] * len(special) + [NORMAL] * (len(tokens) - len(special)), BPE_MERGES


def sentencepiece_tokens() -> tuple[list[str], list[int], list[float]]:
    """Tokens, their types and scores: specials as Gemma's, bytes, characters, pieces by rank."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [CONTROL] * len(special) + [BYTE] * 256
    scores = [-1000.0] * len(special) + [0.0] * 256
    for rank, piece in enumerate([*SP_WORDS, *SP_CHARACTERS]):
        tokens.append(piece)
        types.append(NORMAL)
        scores.append(-float(rank))
    return tokens, types, scores


def pad_tokens(tokens: list[str], vocab: int | None) -> int:
    """How many unused tokens bring `tokens` to `vocab` (default: the next multiple of 32)."""
    target = vocab if vocab is not None else len(tokens) + -len(tokens) % 32
    if target < len(tokens):
        raise ValueError(f"vocab {target}: the tokenizer alone has {len(tokens)} tokens")
    return target - len(tokens)


def bpe_metadata(vocab: int | None = None) -> dict[str, Any]:
    """The tokenizer.* keys of the small byte-level BPE, padded to `vocab` tokens."""
    tokens, types, merges = bpe_tokens()
    padding = pad_tokens(tokens, vocab)
    tokens += [f"<|unused_{i}|>" for i in range(padding)]
    types += [CONTROL] * padding
    return {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": CHATML,
    }


def sentencepiece_metadata(vocab: int | None = None) -> dict[str, Any]:
    """The tokenizer.* keys of the small SentencePiece vocabulary, padded to `vocab` tokens."""
    tokens, types, scores = sentencepiece_tokens()
    padding = pad_tokens(tokens, vocab)
    tokens += [f"<unused{i}>" for i in range(padding)]
    types += [CONTROL] * padding
    scores += [-1000.0] * padding
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }


class _Weights:
    """Draws tensors in a fixed order."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.tensors: Tensors = {}

    def norm(self, name: str, size: int) -> None:
        values = 1 + 0.1 * self.rng.standard_normal(size)
        self.tensors[name] = ("f32", values.astype(np.float32))

    def matrix(self, name: str, rows: int, columns: int, dtype: str | None = None) -> None:
        values = self.rng.standard_normal((rows, columns)) / np.sqrt(columns)
        self.tensors[name] = (dtype or self.dtype, values.astype(np.float32))


def tiny_llama_gguf(
    path: Path,
    dtype: str = "q4_1",
    *,
    vocab: int | None = None,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 128,
    context: int = 512,
    tied: bool = True,
    embed_dtype: str | None = None,
    seed: int = 0,
) -> Path:
    """A llama-architecture GGUF at `path`.

    vocab: padded with unused tokens; None fits the tokenizer. embed_dtype: of token_embd (and
    output, when not tied); `dtype` by default. k-quants need hidden, ffn and heads·head_dim to be
    multiples of 256.
    """
    tokenizer = bpe_metadata(vocab)
    rows = len(tokenizer["tokenizer.ggml.tokens"])
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "tiny llama",
        "general.license": "apache-2.0",
        "general.languages": ["en"],
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": rows,
        "llama.rope.dimension_count": head_dim,
        **({} if heads * head_dim == hidden else {"llama.attention.key_length": head_dim,
                                                  "llama.attention.value_length": head_dim}),
        **tokenizer,
        "general.quantization_version": 2,
    }  # fmt: skip
    w = _Weights(seed, dtype)
    w.matrix("token_embd.weight", rows, hidden, embed_dtype)
    for i in range(layers):
        w.norm(f"blk.{i}.attn_norm.weight", hidden)
        w.matrix(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        w.matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        w.matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        w.matrix(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        w.norm(f"blk.{i}.ffn_norm.weight", hidden)
        w.matrix(f"blk.{i}.ffn_gate.weight", ffn, hidden)
        w.matrix(f"blk.{i}.ffn_up.weight", ffn, hidden)
        w.matrix(f"blk.{i}.ffn_down.weight", hidden, ffn)
    w.norm("output_norm.weight", hidden)
    if not tied:
        w.matrix("output.weight", rows, hidden, embed_dtype)
    return write_gguf(path, metadata, w.tensors)


def tiny_gemma3_gguf(
    path: Path,
    dtype: str = "q8_0",
    *,
    vocab: int | None = None,
    layers: int = 6,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 1,
    head_dim: int = 32,
    ffn: int = 128,
    context: int = 512,
    window: int = 32,
    embed_dtype: str | None = None,
    seed: int = 0,
) -> Path:
    """A gemma3-architecture GGUF at `path`: five layers with a sliding window, then a full one.

    Norm weights are stored as real GGUF files store them, with Gemma's +1 already added. The output
    is tied to the embedding.
    """
    tokenizer = sentencepiece_metadata(vocab)
    rows = len(tokenizer["tokenizer.ggml.tokens"])
    metadata: dict[str, Any] = {
        "general.architecture": "gemma3",
        "general.type": "model",
        "general.name": "tiny gemma 3",
        "general.tags": ["gemma3", "text-generation"],
        "gemma3.context_length": context,
        "gemma3.embedding_length": hidden,
        "gemma3.block_count": layers,
        "gemma3.feed_forward_length": ffn,
        "gemma3.attention.head_count": heads,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.key_length": head_dim,
        "gemma3.attention.value_length": head_dim,
        "gemma3.rope.freq_base": 1000000.0,
        "gemma3.attention.sliding_window": window,
        "gemma3.attention.head_count_kv": kv_heads,
        **tokenizer,
        "general.quantization_version": 2,
    }
    w = _Weights(seed, dtype)
    w.norm("output_norm.weight", hidden)
    w.matrix("token_embd.weight", rows, hidden, embed_dtype)
    for i in range(layers):
        w.norm(f"blk.{i}.attn_norm.weight", hidden)
        w.matrix(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        w.matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        w.matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        w.matrix(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        w.norm(f"blk.{i}.attn_q_norm.weight", head_dim)
        w.norm(f"blk.{i}.attn_k_norm.weight", head_dim)
        w.norm(f"blk.{i}.post_attention_norm.weight", hidden)
        w.norm(f"blk.{i}.ffn_norm.weight", hidden)
        w.matrix(f"blk.{i}.ffn_gate.weight", ffn, hidden)
        w.matrix(f"blk.{i}.ffn_up.weight", ffn, hidden)
        w.matrix(f"blk.{i}.ffn_down.weight", hidden, ffn)
        w.norm(f"blk.{i}.post_ffw_norm.weight", hidden)
    return write_gguf(path, metadata, w.tensors)
