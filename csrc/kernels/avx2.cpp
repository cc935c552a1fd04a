// AVX2 with FMA and F16C: two registers hold a strip's 16 lanes.
#include <immintrin.h>

#include "attention.h"
#include "rowwise.h"
#include "strip.h"

namespace octavo {
namespace {

struct Avx2 {
  struct F { __m256 a, b; };
  struct I { __m256i a, b; };
  struct C { __m256i a, b; };
  static constexpr int quant_rows = 2;
  static constexpr int float_rows = 1;
  static constexpr int32_t s8_offset = 0;

  static F fzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static __m128i eight(const uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static F load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(eight(p)), _mm256_cvtph_ps(eight(p + 8))};
  }
  static __m256 widen_bf16(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static F load_bf16(const uint16_t* p) { return {widen_bf16(eight(p)), widen_bf16(eight(p + 8))}; }
  static __m256i mask(int64_t n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), lanes);
  }
  static F load_n(const float* p, int64_t n) {
    if (n == kStrip) return load(p);
    const __m256 a = _mm256_maskload_ps(p, mask(n));
    return {a, n > 8 ? _mm256_maskload_ps(p + 8, mask(n - 8)) : _mm256_setzero_ps()};
  }
  static void store_n(float* p, F v, int64_t n) {
    _mm256_maskstore_ps(p, mask(n), v.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, mask(n - 8), v.b);
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F mul(F x, float y) {
    const __m256 v = _mm256_set1_ps(y);
    return {_mm256_mul_ps(x.a, v), _mm256_mul_ps(x.b, v)};
  }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F cvt(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I isub(I x, int32_t y) {
    const __m256i v = _mm256_set1_epi32(y);
    return {_mm256_sub_epi32(x.a, v), _mm256_sub_epi32(x.b, v)};
  }
  static C load_codes(const uint8_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  static __m256i nibble(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static C low_nibbles(C c) { return {nibble(c.a), nibble(c.b)}; }
  static C high_nibbles(C c) {
    return {nibble(_mm256_srli_epi16(c.a, 4)), nibble(_mm256_srli_epi16(c.b, 4))};
  }
  static __m256i four(const int8_t* x) {
    int32_t bits;
    std::memcpy(&bits, x, 4);
    return _mm256_set1_epi32(bits);
  }
  static __m256i pairs(__m256i acc, __m256i u, __m256i s) {
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1));
    return _mm256_add_epi32(acc, sums);
  }
  // Codes of at most 127: two products of 127 · 127 fit 16 bits.
  static I dot_u7(I acc, C c, const int8_t* x) {
    const __m256i v = four(x);
    return {pairs(acc.a, c.a, v), pairs(acc.b, c.b, v)};
  }
  // Signed codes: |w| · (±x). Two products of 128 · 127 fit 16 bits, so nothing saturates.
  static __m256i signed_pairs(__m256i acc, __m256i stored, __m256i v) {
    const __m256i w = _mm256_xor_si256(stored, _mm256_set1_epi8(static_cast<char>(0x80)));
    return pairs(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(v, w));
  }
  static I dot_s8(I acc, C c, const int8_t* x) {
    const __m256i v = four(x);
    return {signed_pairs(acc.a, c.a, v), signed_pairs(acc.b, c.b, v)};
  }
  static void prefetch(const uint8_t* p) {
    for (int i = 0; i < 5; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + 64 * i), _MM_HINT_T0);
  }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mulv(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static I nearest(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static __m256 pow2_half(__m256i x) {
    const __m256i biased = _mm256_add_epi32(x, _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static F pow2(I x) { return {pow2_half(x.a), pow2_half(x.b)}; }
  static F less(F x, F y, F a, F b) {
    return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
  }
};

}  // namespace

const Kernels kAvx2Kernels = {
    strip<Avx2>,    quantize_row, rms_norm<Avx2>,
    act_mul<Avx2>, attention<Avx2>, exp_all<Avx2>,
};

}  // namespace octavo
