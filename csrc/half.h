// 16-bit floats to float, exactly, without instruction-set extensions.
#pragma once
#include <cstdint>
#include <cstring>

namespace octavo {
namespace {

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float bf16_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3FFu;
  if (exponent == 31) return bits_to_float(sign | 0x7F800000u | mantissa << 13);
  if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
  // Subnormal: mantissa · 2⁻²⁴, exact in float.
  const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
  return sign ? -value : value;
}

}  // namespace
}  // namespace octavo
