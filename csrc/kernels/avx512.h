// AVX-512 (F, BW, DQ, VL) with VNNI: one register holds a strip's 16 lanes.
#pragma once
#include <immintrin.h>

#include "../half.h"
#include "attention.h"
#include "rowwise.h"
#include "strip.h"

namespace octavo {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using C = __m512i;
  static constexpr int quant_rows = 8;
  static constexpr int float_rows = 4;
  static constexpr int pair_rows = 4;
  static constexpr bool bf16 = false;  // whether pairs are held as bf16
  static constexpr int attention_queries = 4, attention_groups = 4;
  static constexpr int32_t s8_offset = 128;  // vpdpbusd wants unsigned codes

  static F fzero() { return _mm512_setzero_ps(); }
  static I izero() { return _mm512_setzero_si512(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store_n(float* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, mask(n), v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F cvt(I a) { return _mm512_cvtepi32_ps(a); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  // −Offset · the sum of some activation codes; offset: −128 · that sum.
  template <int Offset>
  static I start(const int32_t* offset) {
    const I v = _mm512_set1_epi32(*offset);
    return Offset == 128 ? v : _mm512_srai_epi32(v, 4);
  }
  static C load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static C low_nibbles(C c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
  static C high_nibbles(C c) {
    return _mm512_and_si512(_mm512_srli_epi16(c, 4), _mm512_set1_epi8(15));
  }
  static I four(const int8_t* x) {
    int32_t bits;
    std::memcpy(&bits, x, 4);
    return _mm512_set1_epi32(bits);
  }
  static void dots_u5(I& lo, I& hi, const C* groups, const int8_t* x) {
    for (int g = 0; g < 4; ++g) {
      lo = _mm512_dpbusd_epi32(lo, groups[g], four(x + 4 * g));
      hi = _mm512_dpbusd_epi32(hi, groups[g + 4], four(x + 16 + 4 * g));
    }
  }
  static void dots_s8(I& lo, I& hi, const C* groups, const int8_t* x) {
    dots_u5(lo, hi, groups, x);
  }
  // The largest |x| of 32 values; whether all are finite. As whole numbers magnitudes keep their
  // order, and what is not finite lies above everything else.
  static bool block_amax(const float* x, float* amax) {
    const I sign = _mm512_set1_epi32(0x7FFFFFFF);
    const I a = _mm512_and_si512(_mm512_castps_si512(load(x)), sign);
    const I b = _mm512_and_si512(_mm512_castps_si512(load(x + 16)), sign);
    const I top = _mm512_max_epu32(a, b);
    __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(top), _mm512_extracti32x8_epi32(top, 1));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    const auto bits = static_cast<uint32_t>(_mm_cvtsi128_si32(m));
    std::memcpy(amax, &bits, 4);
    return bits < 0x7F800000u;
  }
  static void block_codes(const float* x, float inverse, int8_t* codes, int32_t* sums) {
    const __m128i low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(mul(load(x), inverse)));
    const __m128i high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(mul(load(x + 16), inverse)));
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
    // Sums of eight unsigned bytes each, codes + 128.
    const __m256i raised = _mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i eights = _mm256_sad_epu8(raised, _mm256_setzero_si256());
    const __m256i both = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4E));
    sums[0] = _mm256_extract_epi32(both, 0) - 16 * 128;
    sums[1] = _mm256_extract_epi32(both, 4) - 16 * 128;
  }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mulv(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static I nearest(F a) { return _mm512_cvtps_epi32(a); }
  static F pow2(I a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(127)), 23));
  }
  // The first n of 16 values, `rest` in the others' place.
  static F load_or(const float* p, int64_t n, float rest) {
    return _mm512_mask_loadu_ps(set1(rest), mask(n), p);
  }
  static uint32_t at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  // Towards zero.
  static I down(F a) { return _mm512_cvttps_epi32(a); }
  static void store_ints(int32_t* p, I v, int64_t n) { _mm512_mask_storeu_epi32(p, mask(n), v); }
  // Compressed in a register and stored whole: storing compressed is slow on some CPUs.
  static int64_t write_ids(uint32_t bits, int32_t first, int32_t* ids) {
    const I lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const I all = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), all));
    return __builtin_popcount(bits);
  }
  static float sum_eight(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  static float most_of_eight(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  static float sum(F x) {
    return sum_eight(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
  }
  static float most(F x) {
    return most_of_eight(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
  }
  // Attention: a pair of floats as it is held, broadcast, and multiplied with 16 bf16 pairs.
  struct Pair { float a, b; };
  struct Spread { F a, b; };
  struct Wide { F a, b; };
  static void to_pairs(const float* x, int64_t n, Pair* out) {
    std::memmove(out, x, static_cast<size_t>(n) * sizeof(float));
  }
  static void from_pair(const Pair* p, float* x) { std::memcpy(x, p, sizeof *p); }
  static Spread spread(const Pair* p) { return {set1(p->a), set1(p->b)}; }
  static F dot2(const Wide& w, const Spread& x, const F& acc) {
    return fma(w.b, x.b, fma(w.a, x.a, acc));
  }
  static Wide load_pairs(const uint16_t* p) {
    const __m512i both = _mm512_loadu_si512(p);
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, high))};
  }
  static constexpr float least_pow2 = -300.0f;
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
  // p · 2^n; 0 where that is too small for a float.
  static F times_pow2(F p, F n) { return _mm512_scalef_ps(p, n); }
  // a / b by a reciprocal of 14 bits and one Newton step: to 2e-7, in a third of the time; b in
  // [1, 2^127].
  static F quotient(F a, F b) {
    const F r = _mm512_rcp14_ps(b);
    const F two = set1(2.0f);
    return _mm512_mul_ps(a, _mm512_mul_ps(r, _mm512_fnmadd_ps(b, r, two)));
  }
  // a where x < y, else b
  static F less(F x, F y, F a, F b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
  }
};

}  // namespace
}  // namespace octavo
