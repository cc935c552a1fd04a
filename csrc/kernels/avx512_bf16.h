// AVX-512 with VNNI and BF16: products of bf16 pairs in one instruction.
#pragma once
#include "avx512.h"

namespace octavo {
namespace {

struct Avx512Bf16 : Avx512 {
  static constexpr int pair_rows = 8;
  static constexpr bool bf16 = true;
  using Pair = uint32_t;
  using Spread = __m512bh;
  using Wide = __m512bh;
  static __m512bh bits(__m512i x) { return reinterpret_cast<__m512bh&>(x); }
  // Rounds to nearest even, subnormals to zero; out may be x.
  static void to_pairs(const float* x, int64_t n, Pair* out) {
    int64_t i = 0;
    for (; i < n; i += 32) {
      const int64_t lo = std::min<int64_t>(n - i, 16), hi = n - i - lo;
      const __m512 a = load_n(x + i, lo);
      const __m512 b = hi > 0 ? load_n(x + i + 16, std::min<int64_t>(hi, 16)) : fzero();
      const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
      const int64_t pairs = std::min<int64_t>(n - i, 32) / 2;
      _mm512_mask_storeu_epi32(out + i / 2, mask(pairs), reinterpret_cast<const __m512i&>(both));
    }
  }
  static void from_pair(const Pair* p, float* x) {
    x[0] = bits_to_float(*p << 16);
    x[1] = bits_to_float(*p & 0xFFFF0000u);
  }
  static Spread spread(const Pair* p) {
    return bits(_mm512_set1_epi32(static_cast<int32_t>(*p)));
  }
  static Wide load_pairs(const uint16_t* p) { return bits(_mm512_loadu_si512(p)); }
  static F dot2(Wide w, Spread x, F acc) { return _mm512_dpbf16_ps(acc, w, x); }
};

void to_bf16(const float* x, int64_t n, void* out) {
  Avx512Bf16::to_pairs(x, n, static_cast<Avx512Bf16::Pair*>(out));
  std::memset(static_cast<uint8_t*>(out) + 2 * n, 0, static_cast<size_t>(bf16_row_bytes(n) - 2 * n));
}

}  // namespace
}  // namespace octavo
