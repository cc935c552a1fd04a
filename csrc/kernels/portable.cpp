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
  static constexpr int32_t s8_offset = 0;

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
  static F load_bf16(const uint16_t* p) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = bf16_to_float(p[i]);
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
  static I isub(I a, int32_t b) {
    for (int32_t& v : a.v) v -= b;
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
  static I dot_u7(I acc, const C& c, const int8_t* x) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) acc.v[i] += c.v[4 * i + j] * x[j];
    }
    return acc;
  }
  static I dot_s8(I acc, const C& c, const int8_t* x) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) acc.v[i] += (c.v[4 * i + j] - 128) * x[j];
    }
    return acc;
  }
  static void prefetch(const uint8_t*) {}
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
  static F less(const F& x, const F& y, const F& a, F b) {
    for (int i = 0; i < 16; ++i) b.v[i] = x.v[i] < y.v[i] ? a.v[i] : b.v[i];
    return b;
  }
};

}  // namespace

const Kernels kPortableKernels = {
    strip<Portable>,    quantize_row, rms_norm<Portable>,
    act_mul<Portable>, attention<Portable>, exp_all<Portable>,
};

}  // namespace octavo
