"""Families as data: configs become plain values, and what is not understood is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.base.errors import ModelError, ModelFileError, UnsupportedModelError
from octavo.models import ModelDef, check_tensors, read_model
from octavo.program import tensor_specs
from octavo.weights import open_checkpoint
from tests.support.tiny_models import tiny_gemma3_gguf, tiny_llama_gguf

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "eos_token_id": [1, 2],
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
QWEN2 = {**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 32}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_hidden_layers": 8,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 1024,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 16,
    "query_pre_attn_scalar": 64,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}


def hf(config: dict[str, Any]) -> ModelDef:
    return read_model(config, {}, "safetensors", where="config.json")


def test_llama() -> None:
    spec = hf(LLAMA).spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (3, 4, 2, 16)
    assert (spec.qkv_bias, spec.qk_norm, spec.post_norms, spec.tie_embeddings) == (False,) * 4
    assert spec.attn_scale == 0.25
    assert spec.norm_offset == 0.0
    layer = spec.layers[0]
    assert layer.window is None
    assert (layer.rope.theta, layer.rope.dim, layer.rope.interleaved) == (500000.0, 16, False)


@pytest.mark.parametrize(
    "change",
    [{"rope_scaling": LLAMA3}, {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}],
    ids=["rope_scaling", "rope_parameters"],
)
def test_llama3_rope_in_both_forms(change: dict[str, Any]) -> None:
    rope = hf({**LLAMA, **change}).spec.layers[0].rope
    assert rope.theta == 5e5
    assert rope.llama3 is not None
    assert (rope.llama3.factor, rope.llama3.original_max_position) == (8.0, 128)


def test_linear_rope_and_mistral_window() -> None:
    scaled = {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert hf(scaled).spec.layers[0].rope.linear_factor == 4.0
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 32}
    assert [layer.window for layer in hf(mistral).spec.layers] == [32, 32, 32]
    assert hf({**mistral, "sliding_window": None}).spec.layers[0].window is None


def test_what_a_missing_key_means_is_what_transformers_takes() -> None:
    """Absent is not null: Mistral has a window of 4096 and 8 kv heads, Qwen 32 kv heads."""
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    config["num_attention_heads"] = 32
    assert hf(config).spec.num_kv_heads == 32
    mistral = {**config, "model_type": "mistral"}
    spec = hf(mistral).spec
    assert (spec.num_kv_heads, spec.layers[0].window) == (8, 4096)
    nulls = hf({**mistral, "num_key_value_heads": None, "sliding_window": None}).spec
    assert (nulls.num_kv_heads, nulls.layers[0].window) == (32, None)
    qwen = {**config, "model_type": "qwen2", "hidden_size": 128, "num_attention_heads": 64}
    assert hf(qwen).spec.num_kv_heads == 32
    assert hf({**qwen, "num_key_value_heads": None}).spec.num_kv_heads == 64


def test_qwen() -> None:
    two, three = hf(QWEN2).spec, hf(QWEN3).spec
    assert (two.qkv_bias, two.qk_norm, two.head_dim) == (True, False, 16)
    assert (three.qkv_bias, three.qk_norm, three.head_dim) == (False, True, 32)
    assert two.layers[0].window is None


def test_gemma3() -> None:
    spec = hf(GEMMA).spec
    assert [layer.window for layer in spec.layers] == [16] * 5 + [None] + [16] * 2
    assert spec.layers[0].rope.theta == 1e4
    assert spec.layers[5].rope.theta == 1e6
    assert (spec.norm_offset, spec.embed_scale, spec.attn_scale) == (1.0, 8.0, 0.125)
    assert spec.post_norms
    assert spec.tie_embeddings
    types = ["full_attention", "sliding_attention"] * 4
    assert hf({**GEMMA, "layer_types": types}).spec.layers[0].window is None
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    both = hf({**GEMMA, "rope_parameters": ropes}).spec
    assert (both.layers[5].rope.theta, both.layers[5].rope.linear_factor) == (2e6, 8.0)
    assert both.layers[0].rope.theta == 3e4


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**LLAMA, "attention_bias": True}, "attention_bias"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias"),
        ({**LLAMA, "hidden_act": "relu"}, "hidden_act"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type"),
        ({**LLAMA, "rope_scaling": {**LLAMA3, "beta": 1}}, "beta"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**LLAMA, "hidden_sise": 3}, "hidden_size"),
        ({**LLAMA, "logit_scale": 0.1}, "logit_scale"),
        ({**LLAMA, "model_type": "lama"}, "llama"),
        ({**LLAMA, "model_type": None}, "model_type"),
        ({**LLAMA, "hidden_size": "64"}, "hidden_size"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA, "num_hidden_layers": 5000}, r"num_hidden_layers.*\[1, 1024\]"),
        ({**LLAMA, "num_hidden_layers": 2**31}, "num_hidden_layers"),
        ({**LLAMA, "head_dim": 2**30}, "head_dim"),
        ({**LLAMA, "rope_theta": 0.0}, "rope_theta"),
        ({**LLAMA, "rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({**LLAMA, "rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({**LLAMA, "rope_theta": 10**400}, "rope_theta"),
        ({**LLAMA, "rope_theta": 5e-324}, "rope_theta"),
        ({**LLAMA, "rms_norm_eps": 1e300}, "rms_norm_eps"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 5e-324}}, "factor"),
        ({**LLAMA, "rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "high_freq_factor"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({**LLAMA, "rope_scaling": LLAMA3, "rope_parameters": LLAMA3}, "rope_scaling"),
        ({**LLAMA, "rope_interleaved": True}, "rope_interleaved"),
        ({**LLAMA, "sliding_window": 16}, "sliding_window"),
        ({**LLAMA, "rope_scaling": 8.0}, "an object"),
        ({**QWEN2, "use_mrope": True}, "use_mrope"),
        ({**GEMMA, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({**GEMMA, "layer_types": [["full_attention"]] * 8}, "layer_types"),
        ({**GEMMA, "rope_scaling": LLAMA3, "rope_parameters": {}}, "rope_scaling"),
        ({**LLAMA, "num_key_value_heads": 3}, "multiple"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size"),
        ({**QWEN2, "use_sliding_window": True}, "use_sliding_window"),
        ({**GEMMA, "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({**GEMMA, "layer_types": ["full_attention"]}, "layer_types"),
        ({**GEMMA, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_would_change_the_result_is_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        hf(config)
    assert isinstance(caught.value, (UnsupportedModelError, ModelFileError))


def test_null_is_absent_and_harmless_keys_pass() -> None:
    noise = {"rope_scaling": None, "logit_scale": None, "use_cache": True, "_name_or_path": "x"}
    assert hf({**LLAMA, **noise, "rope_interleaved": False}).spec == hf(LLAMA).spec


@pytest.mark.parametrize(
    "factors", [(1.0,) * 8, (1.0,) * 7, (0.0,) * 8, (1e-45,) * 8, (float("nan"),) * 8]
)
def test_gguf_rotary_factors(tmp_path: Path, factors: tuple[float, ...]) -> None:
    """Read where a reader is given and they make sense; never ignored."""
    tiny_llama_gguf(tmp_path / "l.gguf")
    checkpoint = open_checkpoint(tmp_path / "l.gguf")
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    shapes["rope_freqs.weight"] = (len(factors),)

    def read(reader: Any) -> ModelDef:
        return read_model(checkpoint.metadata, shapes, "gguf", where="x", read_floats=reader)

    if factors == (1.0,) * 8:
        model = read(lambda name: factors)
        assert model.spec.layers[0].rope.factors == factors
        expected = [(tensor.name, tensor.shape) for tensor in tensor_specs(model.spec)]
        check_tensors(model.name_of, expected, shapes, "x", model.also_known)
        unread = read(None)
        with pytest.raises(UnsupportedModelError, match="rope_freqs"):
            check_tensors(unread.name_of, expected, shapes, "x", unread.also_known)
    else:
        with pytest.raises(ModelError, match="rope_freqs"):
            read(lambda name: factors)


def _gguf(path: Path, **changes: Any) -> tuple[ModelDef, dict[str, tuple[int, ...]]]:
    checkpoint = open_checkpoint(path)
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    return read_model({**checkpoint.metadata, **changes}, shapes, "gguf", where="x.gguf"), shapes


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf_qwen(arch: str, tied: bool) -> None:
    """Biases or head norms, rotary halves, and a head only where the file has one."""
    dim = 32 if arch == "qwen3" else 16
    values: dict[str, Any] = {
        "embedding_length": 64,
        "block_count": 2,
        "context_length": 256,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }
    metadata = {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in values.items()}}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (96, 64),
        "output_norm.weight": (64,),
        **({} if tied else {"output.weight": (96, 64)}),
    }
    for i in range(2):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (64,),
            "attn_q.weight": (4 * dim, 64),
            "attn_k.weight": (2 * dim, 64),
            "attn_v.weight": (2 * dim, 64),
            "attn_output.weight": (64, 4 * dim),
            "ffn_norm.weight": (64,),
            "ffn_gate.weight": (128, 64),
            "ffn_up.weight": (128, 64),
            "ffn_down.weight": (64, 128),
        }
        if arch == "qwen2":
            layer |= {"attn_q.bias": (64,), "attn_k.bias": (32,), "attn_v.bias": (32,)}
        else:
            layer |= {"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    model = read_model(metadata, shapes, "gguf", where="q.gguf")
    spec = model.spec
    assert (spec.qkv_bias, spec.qk_norm) == (arch == "qwen2", arch == "qwen3")
    assert (spec.head_dim, spec.vocab_size, spec.tie_embeddings) == (dim, 96, tied)
    rope = spec.layers[0].rope
    assert (rope.theta, rope.dim, rope.interleaved) == (1e6, dim, False)
    expected = [(tensor.name, tensor.shape) for tensor in tensor_specs(spec)]
    check_tensors(model.name_of, expected, shapes, "q.gguf", model.also_known)
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_k"):
        lost = {n: s for n, s in shapes.items() if not n.startswith("blk.1.attn_k")}
        check_tensors(model.name_of, expected, lost, "q.gguf", model.also_known)


def test_gguf_llama_is_interleaved_and_gemma_is_not(tmp_path: Path) -> None:
    tiny_llama_gguf(tmp_path / "l.gguf")
    tiny_gemma3_gguf(tmp_path / "g.gguf")
    llama, _ = _gguf(tmp_path / "l.gguf")
    gemma, _ = _gguf(tmp_path / "g.gguf")
    assert llama.spec.layers[0].rope.interleaved
    assert not gemma.spec.layers[0].rope.interleaved
    assert gemma.spec.norm_offset == 0.0
    assert gemma.spec.layers[5].window is None
    assert gemma.spec.layers[0].window == 32
    assert llama.spec.vocab_size > 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "lama"}, "llama"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.rope.dimension_count": 8}, "dimension_count"),
        ({"llama.logit_scale": 2.0}, "logit_scale"),
        ({"llama.vocab_size": 7}, "vocab_size"),
        ({"llama.block_count": "2"}, "block_count"),
        ({"llama.block_count": 2**31}, "block_count"),
        ({"llama.rope.freq_base": float("inf")}, "freq_base"),
        ({"llama.rope.freq_base": 5e-324}, "freq_base"),
        ({"llama.rope.scaling.type": np.zeros(2, np.int32)}, "scaling.type"),
        ({"llama.attention.value_length": np.full(2, 16, np.int32)}, "value_length"),
        ({"llama.attention.head_count_kv": np.full(2, 2, np.int32)}, "head_count_kv"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_gguf_refusals(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    tiny_llama_gguf(tmp_path / "l.gguf")
    with pytest.raises(ModelError, match=named):
        _gguf(tmp_path / "l.gguf", **change)


def test_tensors_are_checked_against_the_spec(tmp_path: Path) -> None:
    tiny_llama_gguf(tmp_path / "l.gguf")
    model, shapes = _gguf(tmp_path / "l.gguf")
    expected = [(tensor.name, tensor.shape) for tensor in tensor_specs(model.spec)]
    check_tensors(model.name_of, expected, shapes, "l.gguf")
    name = "blk.0.ffn_up.weight"
    for wrong, said in (
        ({**shapes, name: (3, 3)}, r"blk.0.ffn_up.weight.*\(3, 3\)"),
        ({n: s for n, s in shapes.items() if n != name}, name),
        ({**shapes, "blk.0.extra.weight": (1,)}, "blk.0.extra.weight"),
    ):
        with pytest.raises(ModelError, match=said):
            check_tensors(model.name_of, expected, wrong, "l.gguf")
