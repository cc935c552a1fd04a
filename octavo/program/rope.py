"""Rotary frequencies, scaling applied."""

from __future__ import annotations

import math

from octavo.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> tuple[float, ...]:
    """Radians per position of each rotated pair: theta^(−2i/dim), then scaled.

    Linear scaling divides all by the factor. Llama 3's divides long wavelengths by the factor,
    keeps short ones, and blends between (Llama 3.1's formula).
    """
    plain = [rope.theta ** (-2.0 * i / rope.dim) for i in range(rope.dim // 2)]
    scaled = [frequency / rope.linear_factor for frequency in plain]
    if rope.factors is not None:
        scaled = [frequency / f for frequency, f in zip(scaled, rope.factors, strict=True)]
    llama3 = rope.llama3
    if llama3 is None:
        return tuple(scaled)
    longest = llama3.original_max_position / llama3.low_freq_factor
    shortest = llama3.original_max_position / llama3.high_freq_factor
    out = []
    for frequency in scaled:
        wavelength = 2.0 * math.pi / frequency
        if wavelength < shortest:
            out.append(frequency)
        elif wavelength > longest:
            out.append(frequency / llama3.factor)
        else:
            blend = (llama3.original_max_position / wavelength - llama3.low_freq_factor) / (
                llama3.high_freq_factor - llama3.low_freq_factor
            )
            out.append((1.0 - blend) * frequency / llama3.factor + blend * frequency)
    return tuple(out)
