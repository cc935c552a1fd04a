"""What the families' GGUF metadata have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.base.errors import ModelFileError, UnsupportedModelError
from octavo.models.config import LEAST_NUMBER, MOST_HEAD_DIM, MOST_NUMBER, Config
from octavo.models.spec import RopeSpec

FloatReader = Callable[[str], tuple[float, ...]]
ROPE_FACTORS = "rope_freqs.weight"


Shapes = Mapping[str, tuple[int, ...]]


def sizes(c: Config, shapes: Shapes, *, eps: float) -> dict[str, Any]:
    """Fields of a `ModelSpec` that every architecture names alike. eps: where the key is absent."""
    heads = c.whole("attention.head_count")
    return {
        "vocab_size": _vocab_size(c, shapes),
        "hidden_size": c.whole("embedding_length"),
        "num_heads": heads,
        "num_kv_heads": c.whole("attention.head_count_kv", heads),
        "intermediate_size": c.whole("feed_forward_length"),
        "max_position": c.whole("context_length"),
        "norm_eps": c.number("attention.layer_norm_rms_epsilon", eps),
        "tie_embeddings": "output.weight" not in shapes,
    }


def head_dim(c: Config, default: int) -> int:
    """`attention.key_length`; values are as long as keys in every family here."""
    dim = c.whole("attention.key_length", default, most=MOST_HEAD_DIM)
    c.require("attention.value_length", (dim,))
    return dim


def _vocab_size(c: Config, shapes: Shapes) -> int:
    """The embedding's rows; `vocab_size`, where given, must agree."""
    rows = shapes.get("token_embd.weight", (0,))[0]
    if not rows:
        return c.whole("vocab_size")
    stated = c.whole("vocab_size", rows)
    if stated != rows:
        raise UnsupportedModelError(
            f"{c.where}: vocab_size", value=stated, limit=f"the embedding's {rows} rows"
        )
    return rows


def rope(
    c: Config,
    dim: int,
    default_theta: float,
    *,
    interleaved: bool,
    factors: tuple[float, ...] | None,
) -> RopeSpec:
    """`rope.freq_base`, `rope.dimension_count`, linear scaling, and per-pair factors."""
    theta = c.number("rope.freq_base", default_theta)
    rotated = c.whole("rope.dimension_count", dim)
    if rotated != dim:
        raise UnsupportedModelError(
            f"{c.where}: rope.dimension_count", value=rotated, limit=f"the head's {dim} values"
        )
    kind = c.take("rope.scaling.type", "none")
    if not isinstance(kind, str) or kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{c.where}: rope.scaling.type", value=kind, limit="none or linear"
        )
    factor = c.number("rope.scaling.factor", 1.0)
    c.take("rope.scaling.original_context_length")
    c.take("rope.scaling.finetuned")
    linear = factor if kind == "linear" else 1.0
    if factors is not None and not all(LEAST_NUMBER <= f <= MOST_NUMBER for f in factors):
        raise ModelFileError(
            c.where,
            ROPE_FACTORS,
            found=factors,
            expected=f"numbers in [{LEAST_NUMBER:.2g}, {MOST_NUMBER:.2g}]",
        )
    if factors is not None and len(factors) != dim // 2:
        raise UnsupportedModelError(
            f"{c.where}: {ROPE_FACTORS}", value=len(factors), limit=f"{dim // 2} factors"
        )
    return RopeSpec(theta, dim, interleaved, linear_factor=linear, factors=factors)
