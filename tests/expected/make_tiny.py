"""Small random checkpoints of every family, with the logits that transformers computes for them.

    python tests/expected/make_tiny.py            write tests/expected/tiny/NAME
    python tests/expected/make_tiny.py --check    compute the logits anew and compare

Each folder is a Hugging Face checkpoint as a user has it (config.json, safetensors), made by
transformers' own classes with random weights, and expected.npz: token ids and float32 logits at
every position. Needs torch and transformers; octavo needs neither.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FOLDER = Path(__file__).parent / "tiny"
TOKENS = 48
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


def gemma3() -> Gemma3ForCausalLM:
    ropes = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    sizes = {**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 32}
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(
        **sizes,
        sliding_window=8,
        layer_types=types,
        rope_parameters=ropes,
        query_pre_attn_scalar=24,
        tie_word_embeddings=True,
    )
    return Gemma3ForCausalLM(config)


MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama3-tied": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True)
    ),
    "llama-linear": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LINEAR)),
    "mistral-window": lambda: MistralForCausalLM(
        MistralConfig(**SIZES, head_dim=16, sliding_window=8)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    "gemma3": gemma3,
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that matter: larger than at initialisation, biases and norms away from 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        spread = 0.3 if parameter.dim() == 1 else 2.0 * parameter.shape[-1] ** -0.5
        noise = torch.randn(parameter.shape, generator=generator) * spread
        parameter.data.copy_(parameter.data * (parameter.dim() == 1) + noise)


@torch.no_grad()
def logits_of(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    found: torch.Tensor = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    return found.float().numpy()


def write(name: str, seed: int) -> None:
    folder = FOLDER / name
    model = MAKERS[name]().float().eval()
    randomise(model, seed)
    dtype = torch.bfloat16 if seed % 2 else torch.float32  # both are read
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = np.random.default_rng(seed).integers(0, SIZES["vocab_size"], TOKENS).astype(np.int32)
    np.savez_compressed(folder / "expected.npz", ids=ids, logits=logits_of(load(folder), ids))
    print(f"wrote {name}")


def load(folder: Path) -> Any:
    """The checkpoint as transformers reads it back, computed in float32."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    for seed, name in enumerate(MAKERS):
        if not check:
            write(name, seed)
            continue
        with np.load(FOLDER / name / "expected.npz") as kept:
            fresh = logits_of(load(FOLDER / name), kept["ids"])
            np.testing.assert_allclose(fresh, kept["logits"], rtol=1e-4, atol=1e-4)
        print(f"{name} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
