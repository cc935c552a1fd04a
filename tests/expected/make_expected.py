"""Expected logits and greedy streams of the two real models, from Hugging Face transformers.

    python tests/expected/make_expected.py            write the expected values
    python tests/expected/make_expected.py --check    compute them anew and compare with the files

Needs torch and transformers, which octavo does not: run it in an environment of its own that also
has octavo installed. The weights are dequantised to float32 with the `gguf` package's own
functions, so that octavo's reading is checked too, and run in float32 with eager attention.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from octavo.weights import resolve_model

FOLDER = Path(__file__).parent
GREEDY = 32
TOP = 32
SAMPLED = 64  # fixed ids whose logits are kept beside the top ones


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    return {
        tensor.name: np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(
            tuple(reversed([int(size) for size in tensor.shape]))
        )
        for tensor in GGUFReader(path).tensors
    }


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's llama files hold q and k with each head's rows interleaved; undo it."""
    dim = weight.shape[0] // heads
    return weight.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def layer_names(extra: dict[str, str]) -> dict[str, str]:
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
    }
    return names | extra


def state_dict(
    tensors: dict[str, np.ndarray], names: dict[str, str], minus_one: bool
) -> dict[str, torch.Tensor]:
    state = {}
    for name, array in tensors.items():
        if minus_one and name.endswith("norm.weight"):
            array = array - 1.0
        parts = name.split(".")
        if parts[0] == "blk":
            target = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
            target = f"{top[parts[0]]}.weight"
        state[target] = torch.from_numpy(np.ascontiguousarray(array))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def smollm2() -> tuple[torch.nn.Module, int]:
    tensors = read_tensors(resolve_model("smollm2-135m"))
    for name in tensors:
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            tensors[name] = unpermute(tensors[name], 9 if "attn_q" in name else 3)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    names = layer_names({"ffn_norm": "post_attention_layernorm"})
    model.load_state_dict(state_dict(tensors, names, minus_one=False))
    return model.float().eval(), 49152


def gemma3() -> tuple[torch.nn.Module, int]:
    tensors = read_tensors(resolve_model("gemma3-270m"))
    config = Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        sliding_window=512,
        query_pre_attn_scalar=256,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        layer_types=[
            "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(18)
        ],
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config)
    names = layer_names(
        {
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    )
    model.load_state_dict(state_dict(tensors, names, minus_one=True))
    return model.float().eval(), 262144


def prompts(name: str, vocab: int) -> list[list[int]]:
    """Fixed token ids: ordinary ones, and for Gemma a prompt longer than its window of 512."""
    rng = np.random.default_rng(2026)
    lengths = (1, 9, 33) if name == "smollm2-135m" else (1, 9, 600)
    first = 2 if name == "gemma3-270m" else 1  # Gemma expects <bos>
    return [[first, *rng.integers(300, min(vocab, 40000), n - 1).tolist()] for n in lengths]


@torch.no_grad()
def expected(name: str) -> dict[str, np.ndarray]:
    model, vocab = {"smollm2-135m": smollm2, "gemma3-270m": gemma3}[name]()
    fixed = np.random.default_rng(7).choice(vocab, SAMPLED, replace=False).astype(np.int32)
    found: dict[str, np.ndarray] = {"fixed_ids": fixed}
    for index, prompt in enumerate(prompts(name, vocab)):
        ids, gaps, tops, values, fixed_values, stds = list(prompt), [], [], [], [], []
        for _ in range(GREEDY):
            logits = model(torch.tensor([ids])).logits[0, -1].float().numpy()
            order = np.argsort(-logits, kind="stable")
            gaps.append(logits[order[0]] - logits[order[1]])
            tops.append(order[:TOP].astype(np.int32))
            values.append(logits[order[:TOP]])
            fixed_values.append(logits[fixed])
            stds.append(logits.std())
            ids.append(int(order[0]))
        found |= {
            f"{index}.prompt": np.array(prompt, np.int32),
            f"{index}.greedy": np.array(ids[len(prompt) :], np.int32),
            f"{index}.gap": np.array(gaps, np.float32),
            f"{index}.std": np.array(stds, np.float32),
            f"{index}.top_ids": np.array(tops, np.int32),
            f"{index}.top": np.array(values, np.float32),
            f"{index}.fixed": np.array(fixed_values, np.float32),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    for name in ("smollm2-135m", "gemma3-270m"):
        path = FOLDER / f"{name}.npz"
        fresh = expected(name)
        if not check:
            np.savez_compressed(path, **fresh)
            print(f"wrote {path.name}, {path.stat().st_size} bytes")
            continue
        with np.load(path) as kept:
            assert set(kept.files) == set(fresh), f"{path.name} has other arrays"
            for key in kept.files:
                np.testing.assert_allclose(fresh[key], kept[key], rtol=1e-3, atol=2e-3)
        print(f"{path.name} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
