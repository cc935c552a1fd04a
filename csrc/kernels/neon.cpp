// ARM NEON with the dot product extension: four registers hold a strip's 16 lanes.
#include <arm_neon.h>

#include "../half.h"
#include "attention.h"
#include "rowwise.h"
#include "strip.h"

namespace octavo {
namespace {

// Four registers at a time, written once.
template <class T, class Make>
OCTAVO_INLINE T four_of(Make&& make) {
  return {{make(0), make(1), make(2), make(3)}};
}

struct Neon {
  struct F { float32x4_t v[4]; };
  struct I { int32x4_t v[4]; };
  struct C { uint8x16_t v[4]; };
  static constexpr int quant_rows = 4;
  static constexpr int float_rows = 1;
  static constexpr int pair_rows = 2;
  static constexpr bool bf16 = false;  // whether pairs are held as bf16
  static constexpr int attention_queries = 4, attention_groups = 1;
  static constexpr int32_t s8_offset = 0;

  static F fzero() { return set1(0.0f); }
  static I izero() {
    return four_of<I>([](int) { return vdupq_n_s32(0); });
  }
  static F set1(float x) {
    return four_of<F>([&](int) { return vdupq_n_f32(x); });
  }
  static F load(const float* p) {
    return four_of<F>([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  static F load_f16(const uint16_t* p) {
    return four_of<F>([&](int i) {
      return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    });
  }
  // The first n of 16 values, `rest` in the others' place.
  static F load_or(const float* p, int64_t n, float rest) {
    if (n == kStrip) return load(p);
    float x[kStrip];
    for (int64_t i = 0; i < kStrip; ++i) x[i] = i < n ? p[i] : rest;
    return load(x);
  }
  static F load_n(const float* p, int64_t n) { return load_or(p, n, 0.0f); }
  static void store(float* p, const F& f) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, f.v[i]);
  }
  static void store_n(float* p, const F& f, int64_t n) {
    if (n == kStrip) return store(p, f);
    float x[kStrip];
    store(x, f);
    std::memcpy(p, x, static_cast<size_t>(n) * sizeof(float));
  }
  static void store_ints(int32_t* p, const I& a, int64_t n) {
    int32_t x[kStrip];
    for (int i = 0; i < 4; ++i) vst1q_s32(x + 4 * i, a.v[i]);
    std::memcpy(p, x, static_cast<size_t>(n) * sizeof(int32_t));
  }
  static F add(const F& a, const F& b) {
    return four_of<F>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F sub(const F& a, const F& b) {
    return four_of<F>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  static F mul(const F& a, float b) {
    return four_of<F>([&](int i) { return vmulq_n_f32(a.v[i], b); });
  }
  static F mulv(const F& a, const F& b) {
    return four_of<F>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F div(const F& a, const F& b) {
    return four_of<F>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
  }
  static F quotient(const F& a, const F& b) { return div(a, b); }
  static F fma(const F& a, const F& b, const F& c) {
    return four_of<F>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  // The second operand where one is a NaN, as on x86.
  static F max(const F& a, const F& b) {
    return four_of<F>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
  }
  static F min(const F& a, const F& b) {
    return four_of<F>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
  }
  // a where x < y, else b
  static F less(const F& x, const F& y, const F& a, const F& b) {
    return four_of<F>([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), a.v[i], b.v[i]); });
  }
  static uint32_t at_least(const F& a, const F& b) {
    uint32_t bits = 0;
    const uint32x4_t place = {1, 2, 4, 8};
    for (int i = 0; i < 4; ++i) {
      bits |= vaddvq_u32(vandq_u32(vcgeq_f32(a.v[i], b.v[i]), place)) << (4 * i);
    }
    return bits;
  }
  static int64_t write_ids(uint32_t bits, int32_t first, int32_t* ids) {
    return write_bits(bits, first, ids);
  }
  static F cvt(const I& a) {
    return four_of<F>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
  }
  static I nearest(const F& a) {
    return four_of<I>([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
  }
  // Towards zero.
  static I down(const F& a) {
    return four_of<I>([&](int i) { return vcvtq_s32_f32(a.v[i]); });
  }
  static F round(const F& a) {
    return four_of<F>([&](int i) { return vrndnq_f32(a.v[i]); });
  }
  static I iadd(const I& a, const I& b) {
    return four_of<I>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
  }
  static F pow2(const I& a) {
    return four_of<F>([&](int i) {
      return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(a.v[i], vdupq_n_s32(127)), 23));
    });
  }
  static constexpr float least_pow2 = -127.0f;
  // p · 2^n for whole n in [−127, 127]; n = −127 gives 0.
  static F times_pow2(const F& p, const F& n) { return mulv(p, pow2(nearest(n))); }

  // −Offset · the sum of some activation codes; offset: −128 · that sum.
  template <int Offset>
  static I start(const int32_t* offset) {
    const int32_t value = *offset / (128 / Offset);
    return four_of<I>([&](int) { return vdupq_n_s32(value); });
  }
  static C load_codes(const uint8_t* p) {
    return four_of<C>([&](int i) { return vld1q_u8(p + 16 * i); });
  }
  static C low_nibbles(const C& c) {
    return four_of<C>([&](int i) { return vandq_u8(c.v[i], vdupq_n_u8(15)); });
  }
  static C high_nibbles(const C& c) {
    return four_of<C>([&](int i) { return vshrq_n_u8(c.v[i], 4); });
  }
  // Flip: what turns stored codes into signed ones.
  template <uint8_t Flip>
  static I half(I acc, const C* groups, const int8_t* x) {
    for (int g = 0; g < 4; ++g) {
      int32_t bits;
      std::memcpy(&bits, x + 4 * g, 4);
      const int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(bits));
      for (int i = 0; i < 4; ++i) {
        const uint8x16_t codes = veorq_u8(groups[g].v[i], vdupq_n_u8(Flip));
        acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_u8(codes), v);
      }
    }
    return acc;
  }
  static void dots_u5(I& lo, I& hi, const C* groups, const int8_t* x) {
    lo = half<0>(lo, groups, x);
    hi = half<0>(hi, groups + 4, x + 16);
  }
  static void dots_s8(I& lo, I& hi, const C* groups, const int8_t* x) {
    lo = half<0x80>(lo, groups, x);
    hi = half<0x80>(hi, groups + 4, x + 16);
  }
  // The largest |x| of 32 values; whether all are finite. As whole numbers magnitudes keep their
  // order, and what is not finite lies above everything else.
  static bool block_amax(const float* x, float* amax) {
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < kBlock; i += 4) {
      const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i));
      top = vmaxq_u32(top, vandq_u32(bits, vdupq_n_u32(0x7FFFFFFF)));
    }
    const uint32_t bits = vmaxvq_u32(top);
    std::memcpy(amax, &bits, 4);
    return bits < 0x7F800000u;
  }
  static void block_codes(const float* x, float inverse, int8_t* codes, int32_t* sums) {
    for (int h = 0; h < 2; ++h, x += 16, codes += 16) {
      const I q = nearest(mul(load(x), inverse));
      const int16x8_t a = vcombine_s16(vmovn_s32(q.v[0]), vmovn_s32(q.v[1]));
      const int16x8_t b = vcombine_s16(vmovn_s32(q.v[2]), vmovn_s32(q.v[3]));
      vst1q_s8(codes, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
      sums[h] = vaddlvq_s16(vaddq_s16(a, b));
    }
  }
  static float sum(const F& f) {
    const float32x4_t a = vaddq_f32(f.v[0], f.v[2]), b = vaddq_f32(f.v[1], f.v[3]);
    const float32x4_t c = vaddq_f32(a, b);
    const float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
  }
  static float most(const F& f) {
    float x[kStrip];
    store(x, f);
    float top = x[0];
    for (const float v : x) top = v > top ? v : top;
    return top;
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
    const C both = load_codes(reinterpret_cast<const uint8_t*>(p));
    const uint32x4_t high = vdupq_n_u32(0xFFFF0000u);
    return {four_of<F>([&](int i) {
              return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(both.v[i]), 16));
            }),
            four_of<F>([&](int i) {
              return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(both.v[i]), high));
            })};
  }
};

}  // namespace

const Kernels kNeonKernels = {
    strip<Neon>,       quantize_row<Neon>, nullptr,       rms_norm<Neon>, act_mul<Neon>,
    attend_span<Neon>, join_spans<Neon>,   scan<Neon>,    weigh<Neon>,    select<Neon>,
    cut<Neon>,         keep<Neon>,         burn<Neon>,
};

}  // namespace octavo
