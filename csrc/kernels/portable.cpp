// Plain C++: any CPU. The compiler may vectorise it; the order of operations is the same.
#include "../half.h"
#include "attention.h"
#include "rowwise.h"
#include "strip.h"

namespace octavo {
namespace {

struct Portable {
  struct F { float v[16]; };
  struct I { int32_t v[16]; };
  struct C { uint8_t v[64]; };
  static constexpr int quant_rows = 1;
  static constexpr int float_rows = 1;
  static constexpr int pair_rows = 1;
  static constexpr bool bf16 = false;  // whether pairs are held as bf16
  static constexpr int32_t s8_offset = 0;
  static constexpr int attention_queries = 1, attention_groups = 1;

  static F fzero() { return {}; }
  static I izero() { return {}; }
  static F set1(float x) {
    F f;
    for (float& v : f.v) v = x;
    return f;
  }
  static F load(const float* p) {
    F f;
    std::memcpy(f.v, p, sizeof f.v);
    return f;
  }
  static F load_f16(const uint16_t* p) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = half_to_float(p[i]);
    return f;
  }
  static F load_n(const float* p, int64_t n) {
    F f{};
    std::memcpy(f.v, p, static_cast<size_t>(n) * sizeof(float));
    return f;
  }
  static void store_n(float* p, const F& f, int64_t n) {
    std::memcpy(p, f.v, static_cast<size_t>(n) * sizeof(float));
  }
  static F add(F a, const F& b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  static F mul(F a, float b) {
    for (float& v : a.v) v *= b;
    return a;
  }
  static F fma(const F& a, const F& b, F c) {
    for (int i = 0; i < 16; ++i) c.v[i] += a.v[i] * b.v[i];
    return c;
  }
  static F cvt(const I& a) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = static_cast<float>(a.v[i]);
    return f;
  }
  static I iadd(I a, const I& b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  // −Offset · the sum of some activation codes; offset: −128 · that sum.
  template <int Offset>
  static I start(const int32_t* offset) {
    I a;
    for (int32_t& v : a.v) v = *offset / (128 / Offset);
    return a;
  }
  static C load_codes(const uint8_t* p) {
    C c;
    std::memcpy(c.v, p, 64);
    return c;
  }
  static C low_nibbles(C c) {
    for (uint8_t& v : c.v) v &= 15;
    return c;
  }
  static C high_nibbles(C c) {
    for (uint8_t& v : c.v) v = static_cast<uint8_t>(v >> 4);
    return c;
  }
  template <int Offset>
  static I dots(I acc, const C* groups, const int8_t* x) {
    for (int g = 0; g < 4; ++g) {
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 4; ++j) {
          acc.v[i] += (groups[g].v[4 * i + j] - Offset) * x[4 * g + j];
        }
      }
    }
    return acc;
  }
  static void dots_u5(I& lo, I& hi, const C* groups, const int8_t* x) {
    lo = dots<0>(lo, groups, x);
    hi = dots<0>(hi, groups + 4, x + 16);
  }
  static void dots_s8(I& lo, I& hi, const C* groups, const int8_t* x) {
    lo = dots<128>(lo, groups, x);
    hi = dots<128>(hi, groups + 4, x + 16);
  }
  // The largest |x| of 32 values; whether all are finite.
  static bool block_amax(const float* x, float* amax) {
    bool finite = true;
    *amax = 0.0f;
    for (int i = 0; i < kBlock; ++i) {
      *amax = std::max(*amax, std::fabs(x[i]));
      finite &= std::fabs(x[i]) <= 3.4028235e38f;
    }
    return finite;
  }
  static void block_codes(const float* x, float inverse, int8_t* codes, int32_t* sums) {
    for (int i = 0; i < kBlock; ++i) {
      // Adding 1.5·2²³ rounds to a whole number, ties to even, in the low bits.
      const float shifted = x[i] * inverse + 12582912.0f;
      int32_t bits;
      std::memcpy(&bits, &shifted, 4);
      codes[i] = static_cast<int8_t>(bits - 0x4B400000);
      sums[i / 16] += codes[i];
    }
  }
  static F sub(F a, const F& b) {
    for (int i = 0; i < 16; ++i) a.v[i] -= b.v[i];
    return a;
  }
  static F mulv(F a, const F& b) {
    for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static F div(F a, const F& b) {
    for (int i = 0; i < 16; ++i) a.v[i] /= b.v[i];
    return a;
  }
  static F max(F a, const F& b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static F min(F a, const F& b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static void store(float* p, const F& f) { std::memcpy(p, f.v, sizeof f.v); }
  static I nearest(const F& a) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<int32_t>(std::lrintf(a.v[i]));
    return r;
  }
  static F pow2(const I& a) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = bits_to_float(static_cast<uint32_t>(a.v[i] + 127) << 23);
    return r;
  }
  // The first n of 16 values, `rest` in the others' place.
  static F load_or(const float* p, int64_t n, float rest) {
    F f = set1(rest);
    std::memcpy(f.v, p, static_cast<size_t>(n) * sizeof(float));
    return f;
  }
  static uint32_t at_least(const F& a, const F& b) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
    return bits;
  }
  // Towards zero.
  static I down(const F& a) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<int32_t>(a.v[i]);
    return r;
  }
  static void store_ints(int32_t* p, const I& a, int64_t n) {
    std::memcpy(p, a.v, static_cast<size_t>(n) * sizeof(int32_t));
  }
  static int64_t write_ids(uint32_t bits, int32_t first, int32_t* ids) {
    return write_bits(bits, first, ids);
  }
  static float sum(F f) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) f.v[i] += f.v[i + width];
    }
    return f.v[0];
  }
  static float most(const F& f) {
    float top = f.v[0];
    for (const float v : f.v) top = v > top ? v : top;
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
    Wide w;
    for (int i = 0; i < 16; ++i) {
      w.a.v[i] = bf16_to_float(p[2 * i]);
      w.b.v[i] = bf16_to_float(p[2 * i + 1]);
    }
    return w;
  }
  static constexpr float least_pow2 = -127.0f;
  static F round(F a) {
    for (float& v : a.v) v = std::nearbyintf(v);
    return a;
  }
  // p · 2^n for whole n in [−127, 127]; n = −127 gives 0.
  static F times_pow2(const F& p, const F& n) { return mulv(p, pow2(nearest(n))); }
  static F quotient(const F& a, const F& b) { return div(a, b); }
  static F less(const F& x, const F& y, const F& a, F b) {
    for (int i = 0; i < 16; ++i) b.v[i] = x.v[i] < y.v[i] ? a.v[i] : b.v[i];
    return b;
  }
};

}  // namespace

const Kernels kPortableKernels = {
    strip<Portable>,   quantize_row<Portable>, nullptr, rms_norm<Portable>, act_mul<Portable>,
    attend_span<Portable>, join_spans<Portable>, scan<Portable>,
    weigh<Portable>, select<Portable>, cut<Portable>, keep<Portable>,
    burn<Portable>,
};

}  // namespace octavo
