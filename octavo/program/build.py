"""From a `ModelSpec` to a `Program`."""

from __future__ import annotations

from math import gcd

from octavo.models.spec import LayerSpec, ModelSpec
from octavo.program import ops as op
from octavo.program.ops import Buffer, Op, Per
from octavo.program.program import KvGroup, KvLayout, Program, TensorSpec
from octavo.program.rope import inverse_frequencies


def build_program(spec: ModelSpec, block_size: int) -> Program:
    """The forward and sample programs of a decoder-only transformer.

    embed → layers × (norm → q, k, v → norms per head → rope → store → attention → o → add
                      norm → gate, up → act · → down → add) → gather
    load → norm → lm_head → sample
    """
    kv = kv_layout(spec, block_size)
    place = {
        layer: (group, index)
        for group, members in enumerate(kv.groups)
        for index, layer in enumerate(members.layers)
    }
    forward: list[Op] = [op.Embed("x", "embed", spec.embed_scale)]
    for index, layer in enumerate(spec.layers):
        forward += _attention_ops(spec, layer, f"layers.{index}", *place[index])
        forward += _mlp_ops(spec, f"layers.{index}")
    forward.append(op.GatherRows("x"))
    head = "embed" if spec.tie_embeddings else "lm_head"
    hidden, vocab = spec.hidden_size, spec.vocab_size
    sample: list[Op] = [
        op.LoadRows("last"),
        _norm(spec, "last.norm", "last", "final_norm"),
        op.Linear("logits", "last.norm", head, hidden, vocab),
        op.Sample("logits"),
    ]
    return Program(
        spec=spec,
        kv=kv,
        buffers=_buffers(spec),
        forward=tuple(forward),
        sample=tuple(sample),
        tensors=tensor_specs(spec),
    )


def kv_layout(spec: ModelSpec, block_size: int) -> KvLayout:
    """Group layers by window; split the groups to one size, the gcd of the counts."""
    by_window: dict[int | None, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        by_window.setdefault(layer.window, []).append(index)
    size = gcd(*(len(layers) for layers in by_window.values()))
    groups = [
        KvGroup(window, tuple(layers[start : start + size]))
        for window, layers in by_window.items()
        for start in range(0, len(layers), size)
    ]
    return KvLayout(tuple(groups), block_size, spec.num_kv_heads, spec.head_dim)


def tensor_specs(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """Every tensor that the program reads, in the order in which it is first read."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    found = [TensorSpec("embed", (spec.vocab_size, hidden))]
    for index in range(spec.num_layers):
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "q": (heads, hidden),
            "k": (kv_heads, hidden),
            "v": (kv_heads, hidden),
        }
        if spec.qkv_bias:
            shapes |= {"q_bias": (heads,), "k_bias": (kv_heads,), "v_bias": (kv_heads,)}
        if spec.qk_norm:
            shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
        shapes["o"] = (hidden, heads)
        if spec.post_norms:
            shapes["post_attn_norm"] = (hidden,)
        shapes |= {"mlp_norm": (hidden,), "gate": (ffn, hidden), "up": (ffn, hidden)}
        shapes["down"] = (hidden, ffn)
        if spec.post_norms:
            shapes["post_mlp_norm"] = (hidden,)
        found += [TensorSpec(f"layers.{index}.{name}", shape) for name, shape in shapes.items()]
    found.append(TensorSpec("final_norm", (hidden,)))
    if not spec.tie_embeddings:
        found.append(TensorSpec("lm_head", (spec.vocab_size, hidden)))
    return tuple(found)


def _buffers(spec: ModelSpec) -> tuple[Buffer, ...]:
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    per_token = {
        "x": spec.hidden_size,
        "norm": spec.hidden_size,
        "q": heads,
        "k": kv_heads,
        "v": kv_heads,
        "attn": heads,
        "branch": spec.hidden_size,
        "gate": spec.intermediate_size,
        "up": spec.intermediate_size,
    }
    per_row = {
        "last": spec.hidden_size,
        "last.norm": spec.hidden_size,
        "logits": spec.vocab_size,
    }
    tokens = [Buffer(name, Per.TOKEN, width) for name, width in per_token.items()]
    return (*tokens, *(Buffer(name, Per.ROW, width) for name, width in per_row.items()))


def _norm(spec: ModelSpec, out: str, x: str, weight: str, width: int | None = None) -> op.RmsNorm:
    return op.RmsNorm(out, x, weight, width or spec.hidden_size, spec.norm_eps, spec.norm_offset)


def _attention_ops(
    spec: ModelSpec, layer: LayerSpec, name: str, group: int, index: int
) -> list[Op]:
    hidden, dim = spec.hidden_size, spec.head_dim
    sizes = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    made: list[Op] = [_norm(spec, "norm", "x", f"{name}.attn_norm")]
    for part, heads in sizes.items():
        bias = f"{name}.{part}_bias" if spec.qkv_bias else None
        made.append(op.Linear(part, "norm", f"{name}.{part}", hidden, heads * dim, bias))
    if spec.qk_norm:
        made += [_norm(spec, part, part, f"{name}.{part}_norm", dim) for part in ("q", "k")]
    frequencies = inverse_frequencies(layer.rope)
    for part in ("q", "k"):
        made.append(op.Rope(part, sizes[part], dim, frequencies, layer.rope.interleaved))
    made.append(op.KvStore("k", "v", group, index))
    made.append(
        op.Attention(
            "attn",
            "q",
            group,
            index,
            spec.num_heads,
            spec.num_kv_heads,
            dim,
            spec.attn_scale,
            layer.window,
        )
    )
    made.append(op.Linear("branch", "attn", f"{name}.o", spec.num_heads * dim, hidden))
    return made + _close_branch(spec, f"{name}.post_attn_norm")


def _mlp_ops(spec: ModelSpec, name: str) -> list[Op]:
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    made: list[Op] = [
        _norm(spec, "norm", "x", f"{name}.mlp_norm"),
        op.Linear("gate", "norm", f"{name}.gate", hidden, ffn),
        op.Linear("up", "norm", f"{name}.up", hidden, ffn),
        op.ActMul("gate", "gate", "up", spec.activation),
        op.Linear("branch", "gate", f"{name}.down", ffn, hidden),
    ]
    return made + _close_branch(spec, f"{name}.post_mlp_norm")


def _close_branch(spec: ModelSpec, post_norm: str) -> list[Op]:
    made: list[Op] = [_norm(spec, "branch", "branch", post_norm)] if spec.post_norms else []
    return [*made, op.Add("x", "x", "branch")]
