// AVX2 with FMA and F16C: two registers hold a strip's 16 lanes.
#include <immintrin.h>

#include "../half.h"
#include "attention.h"
#include "rowwise.h"
#include "strip.h"

namespace octavo {
namespace {

struct Avx2 {
  struct F { __m256 a, b; };
  struct I { __m256i a, b; };
  struct C { __m256i a, b; };
  static constexpr int quant_rows = 4;
  static constexpr int float_rows = 1;
  static constexpr int pair_rows = 2;
  static constexpr bool bf16 = false;  // whether pairs are held as bf16
  static constexpr int32_t s8_offset = 0;
  static constexpr int attention_queries = 2, attention_groups = 2;

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
  // −Offset · the sum of some activation codes; offset: −128 · that sum.
  template <int Offset>
  static I start(const int32_t* offset) {
    const __m256i v = _mm256_set1_epi32(*offset / (128 / Offset));
    return {v, v};
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
  static __m256i widened(__m256i acc, __m256i words) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
  // Eight products of at most 31 · 127 fit 16 bits, so the four groups add up before widening.
  static I half_u5(I acc, const C* groups, const int8_t* x) {
    __m256i v = four(x);
    __m256i a = _mm256_maddubs_epi16(groups[0].a, v), b = _mm256_maddubs_epi16(groups[0].b, v);
    for (int g = 1; g < 4; ++g) {
      v = four(x + 4 * g);
      a = _mm256_add_epi16(a, _mm256_maddubs_epi16(groups[g].a, v));
      b = _mm256_add_epi16(b, _mm256_maddubs_epi16(groups[g].b, v));
    }
    return {widened(acc.a, a), widened(acc.b, b)};
  }
  // Signed codes: |w| · (±x). Two products of 128 · 127 fit 16 bits, so nothing saturates.
  static __m256i signed_pairs(__m256i stored, __m256i v) {
    const __m256i w = _mm256_xor_si256(stored, _mm256_set1_epi8(static_cast<char>(0x80)));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(v, w));
  }
  static I half_s8(I acc, const C* groups, const int8_t* x) {
    for (int g = 0; g < 4; ++g) {
      const __m256i v = four(x + 4 * g);
      acc.a = widened(acc.a, signed_pairs(groups[g].a, v));
      acc.b = widened(acc.b, signed_pairs(groups[g].b, v));
    }
    return acc;
  }
  static void dots_u5(I& lo, I& hi, const C* groups, const int8_t* x) {
    lo = half_u5(lo, groups, x);
    hi = half_u5(hi, groups + 4, x + 16);
  }
  static void dots_s8(I& lo, I& hi, const C* groups, const int8_t* x) {
    lo = half_s8(lo, groups, x);
    hi = half_s8(hi, groups + 4, x + 16);
  }
  // The largest |x| of 32 values; whether all are finite.
  static bool block_amax(const float* x, float* amax) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    const __m256 most = _mm256_set1_ps(3.4028235e38f);
    __m256 top = _mm256_setzero_ps(), strange = _mm256_setzero_ps();
    for (int i = 0; i < 32; i += 8) {
      const __m256 a = _mm256_and_ps(_mm256_loadu_ps(x + i), magnitude);
      top = _mm256_max_ps(top, a);
      strange = _mm256_or_ps(strange, _mm256_cmp_ps(a, most, _CMP_NLE_UQ));
    }
    *amax = most_of_eight(top);
    return _mm256_movemask_ps(strange) == 0;
  }
  static void block_codes(const float* x, float inverse, int8_t* codes, int32_t* sums) {
    const __m256 scale = _mm256_set1_ps(inverse);
    for (int half = 0; half < 2; ++half, x += 16, codes += 16) {
      const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
      const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));
      // Packing works within halves of a register: a0 b0 a1 b1, put right by 64-bit parts.
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
      const __m128i bytes =
          _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
      const __m256i both = _mm256_add_epi32(a, b);
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
      sums[half] = _mm_cvtsi128_si32(sum);
    }
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
  // The first n of 16 values, `rest` in the others' place.
  static F load_or(const float* p, int64_t n, float rest) {
    if (n == kStrip) return load(p);
    const F v = load_n(p, n), r = set1(rest);
    return {_mm256_blendv_ps(r.a, v.a, _mm256_castsi256_ps(mask(n))),
            _mm256_blendv_ps(r.b, v.b, _mm256_castsi256_ps(mask(n - 8)))};
  }
  static uint32_t at_least(F x, F y) {
    const int a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ));
    const int b = _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ));
    return static_cast<uint32_t>(a | b << 8);
  }
  // Towards zero.
  static I down(F x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
  static void store_ints(int32_t* p, I v, int64_t n) {
    _mm256_maskstore_epi32(p, mask(n), v.a);
    if (n > 8) _mm256_maskstore_epi32(p + 8, mask(n - 8), v.b);
  }
  static int64_t write_ids(uint32_t bits, int32_t first, int32_t* ids) {
    return write_bits(bits, first, ids);
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
  static float sum(F x) { return sum_eight(_mm256_add_ps(x.a, x.b)); }
  static float most(F x) { return most_of_eight(_mm256_max_ps(x.a, x.b)); }
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
  static F halves(const uint16_t* p, bool high) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    const __m256i a = _mm256_loadu_si256(q), b = _mm256_loadu_si256(q + 1);
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
    if (high) {
      return {_mm256_castsi256_ps(_mm256_and_si256(a, mask)),
              _mm256_castsi256_ps(_mm256_and_si256(b, mask))};
    }
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  }
  static Wide load_pairs(const uint16_t* p) { return {halves(p, false), halves(p, true)}; }
  static constexpr float least_pow2 = -127.0f;
  static F round(F x) {
    constexpr int nearest_even = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, nearest_even), _mm256_round_ps(x.b, nearest_even)};
  }
  // p · 2^n for whole n in [−127, 127]; n = −127 gives 0.
  static F times_pow2(F p, F n) { return mulv(p, pow2(nearest(n))); }
  static F quotient(F x, F y) { return div(x, y); }
  static F less(F x, F y, F a, F b) {
    return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
  }
};

}  // namespace

const Kernels kAvx2Kernels = {
    strip<Avx2>,   quantize_row<Avx2>, nullptr, rms_norm<Avx2>, act_mul<Avx2>,
    attend_span<Avx2>, join_spans<Avx2>, scan<Avx2>,
    weigh<Avx2>, select<Avx2>, cut<Avx2>, keep<Avx2>,
    burn<Avx2>,
};

}  // namespace octavo
