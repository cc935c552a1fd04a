// AVX-512 (F, BW, DQ, VL) with VNNI: one register holds a strip's 16 lanes.
#include <immintrin.h>

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
  static constexpr int32_t s8_offset = 128;  // vpdpbusd wants unsigned codes

  static F fzero() { return _mm512_setzero_ps(); }
  static I izero() { return _mm512_setzero_si512(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store_n(float* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, mask(n), v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F cvt(I a) { return _mm512_cvtepi32_ps(a); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I isub(I a, int32_t b) { return _mm512_sub_epi32(a, _mm512_set1_epi32(b)); }
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
  static I dot_u7(I acc, C codes, const int8_t* x) { return _mm512_dpbusd_epi32(acc, codes, four(x)); }
  static I dot_s8(I acc, C codes, const int8_t* x) { return _mm512_dpbusd_epi32(acc, codes, four(x)); }
  static void prefetch(const uint8_t* p) {
    for (int i = 0; i < 5; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + 64 * i), _MM_HINT_T0);
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
  // a where x < y, else b
  static F less(F x, F y, F a, F b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
  }
};

}  // namespace

const Kernels kAvx512Kernels = {
    strip<Avx512>,    quantize_row, rms_norm<Avx512>,
    act_mul<Avx512>, attention<Avx512>, exp_all<Avx512>,
};

}  // namespace octavo
