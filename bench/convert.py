"""A GGUF file's weights as a bf16 Hugging Face folder, for engines that read no GGUF.

    python bench/convert.py [MODEL] FOLDER

The weights are dequantised, so that every engine computes with the same values, rounded to bf16
(which moves a value by 0.4 % at most). Llama's shape only, which is what the comparison runs.
Needs octavo and numpy, no PyTorch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.models.names import (
    GGUF_LAYER,
    GGUF_TOP,
    HF_LAYER,
    HF_TOP,
)
from octavo.text import rebuild
from octavo.weights import (
    DEFAULT_MODEL,
    Checkpoint,
    dequantize,
    open_checkpoint,
    quantize,
    resolve_model,
)

Floats = NDArray[np.float32]


def convert(source: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into `folder`.

    Raises ValueError for anything but a llama in GGUF.
    """
    checkpoint = open_checkpoint(source)
    architecture = checkpoint.metadata.get("general.architecture")
    if checkpoint.format != "gguf" or architecture != "llama":
        raise ValueError(f"{architecture} is not converted; only a GGUF file of a llama is")
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(checkpoint)
    write_safetensors(folder / "model.safetensors", checkpoint, config)
    meta = checkpoint.metadata
    pieces = meta["tokenizer.ggml.tokens"]
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": pieces[config["bos_token_id"]],
        "eos_token": pieces[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "chat_template": checkpoint.chat_template,
    }
    (folder / "tokenizer.json").write_bytes(rebuild.rebuild(meta))
    _write_json(folder / "tokenizer_config.json", tokenizer)
    _write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    _write_json(folder / "config.json", config)  # last: who finds it finds the rest


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    meta = checkpoint.metadata
    vocab, hidden = checkpoint.tensors["token_embd.weight"].shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
    }


def write_safetensors(path: Path, checkpoint: Checkpoint, config: dict[str, Any]) -> None:
    """Every tensor as bf16, one at a time: u64 header length, JSON header, data."""
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        nbytes = 2 * int(np.prod(shape))
        header[hf_name(name)] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [at, at + nbytes],
        }
        at += nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, info in checkpoint.tensors.items():
            values = dequantize(checkpoint.read(name), info.dtype, info.shape)
            part = name.split(".")[-2]
            if part in heads:
                values = unpermute(values, heads[part])
            file.write(quantize(values, "bf16").tobytes())


def unpermute(weight: Floats, heads: int) -> Floats:
    """GGUF's llama files hold q and k with each head's rows interleaved; undo it."""
    dim = weight.shape[0] // heads
    pairs = weight.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(pairs.reshape(weight.shape))


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`. KeyError if unknown."""
    if not name.startswith("blk."):
        canonical = {theirs: ours for ours, theirs in GGUF_TOP.items()}[name]
        return HF_TOP[canonical]
    _, layer, part = name.split(".", 2)
    canonical = {theirs: ours for ours, theirs in GGUF_LAYER.items()}[part]
    return f"model.layers.{layer}.{HF_LAYER[canonical]}"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    convert(resolve_model(options.model), options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
