// The linear kernels, written once over a vector type of 16 lanes (one lane per row of a strip).
// Each instruction set includes this in its own translation unit with its own `V`; everything is
// in an anonymous namespace so that no code compiled for one set can be linked into another.
//
// V provides: F (16 floats), I (16 int32), C (64 code bytes: 16 rows × 4) and the operations used
// below. dots_…(lo, hi, groups, x) adds the products of 8 groups of codes and 32 activation codes,
// the first 16 in lo, the others in hi. u5: codes are at most 31; s8: codes are stored +128, and the
// sums are too large by V::s8_offset · Σx.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../kernels.h"
#include "unroll.h"

namespace octavo {
namespace {

template <class V>
inline void store_row(const StripCall& c, int64_t row, typename V::F acc) {
  float* out = c.out + row * c.ldo;
  if (c.bias) acc = V::add(acc, V::load_n(c.bias, c.valid));
  if (c.accumulate) acc = V::add(V::load_n(out, c.valid), acc);
  V::store_n(out, acc, c.valid);
}

// The block's 8 code groups as vectors of bytes.
template <class V, bool U4>
inline void load_codes(const uint8_t* block, typename V::C* groups) {
  if constexpr (U4) {
    for (int j = 0; j < 4; ++j) {
      const auto both = V::load_codes(block + 64 * j);
      groups[j] = V::low_nibbles(both);
      groups[j + 4] = V::high_nibbles(both);
    }
  } else {
    for (int g = 0; g < 8; ++g) groups[g] = V::load_codes(block + 64 * g);
  }
}

// R activation rows against one strip. Per block, in this order and whatever R is:
//   scale only:  acc = fma(dot, wscale · ascale, acc)
//   with min:    acc = fma(dot, wscale · ascale, acc); acc = fma(wmin, ascale · sum, acc)
//   two halves:  acc = fma(dot0, wscale0 · ascale, acc); acc = fma(dot1, wscale1 · ascale, acc)
template <class V, int32_t L, int R>
inline void quant_rows(const StripCall& c, int64_t r0) {
  using F = typename V::F;
  using I = typename V::I;
  constexpr bool u4 = is_u4(L);
  constexpr bool with_min = L == kU4mF16 || L == kU4mF32 || L == kU8mF16 || L == kU8mF32;
  constexpr bool wide_scale = L == kU4mF32 || L == kU8mF32 || L == kS8hF32;
  constexpr bool halves = L == kS8hF32;
  constexpr bool is_signed = L == kS8F16 || L == kS8hF32;
  // What the stored codes are too large by.
  constexpr int offset = L == kU4F16 ? 8 : is_signed ? V::s8_offset : 0;
  constexpr int64_t code_bytes = u4 ? 256 : 512;
  constexpr int64_t bytes = unit_bytes(L);
  const int64_t lane = r0 % kPanelRows;
  const int8_t* codes = panel_codes(c.act, r0, c.k);
  const int8_t* rest = codes - lane * kBlock;  // the panel's block
  F acc[R];
  for (int r = 0; r < R; ++r) acc[r] = V::fzero();
  const int64_t blocks = c.k / kBlock;
  const uint8_t* p = c.strip;
  const uint8_t* ahead = r0 == c.r0 ? c.ahead : nullptr;
  for (int64_t b = 0; b < blocks; ++b, p += bytes, codes += kPanelBlock, rest += kPanelBlock) {
    const auto* scales = reinterpret_cast<const float*>(rest + kPanelScale) + lane;
    const auto* scaled_sums = reinterpret_cast<const float*>(rest + kPanelScaledSum) + lane;
    const auto* offsets = reinterpret_cast<const int32_t*>(rest + kPanelOffset) + lane;
    if (ahead) {
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
      ahead += bytes;
    }
    typename V::C groups[8];
    load_codes<V, u4>(p, groups);
    const uint8_t* q = p + code_bytes;
    F scale, second;  // second: the mins, or the second half's scales
    if constexpr (wide_scale) {
      scale = V::load(reinterpret_cast<const float*>(q));
      second = V::load(reinterpret_cast<const float*>(q + 64));
    } else {
      scale = V::load_f16(reinterpret_cast<const uint16_t*>(q));
      second = with_min ? V::load_f16(reinterpret_cast<const uint16_t*>(q + 32)) : V::fzero();
    }
    unrolled<R>([&](auto r) __attribute__((always_inline)) {
      const int8_t* xq = codes + r * kBlock;
      I lo = V::izero(), hi = V::izero();
      if constexpr (offset != 0) {
        lo = V::template start<offset>(offsets + r);
        hi = V::template start<offset>(offsets + kPanelRows + r);
      }
      if constexpr (is_signed) {
        V::dots_s8(lo, hi, groups, xq);
      } else {
        V::dots_u5(lo, hi, groups, xq);
      }
      const float ascale = scales[r];
      if constexpr (halves) {
        acc[r] = V::fma(V::cvt(lo), V::mul(scale, ascale), acc[r]);
        acc[r] = V::fma(V::cvt(hi), V::mul(second, ascale), acc[r]);
      } else {
        acc[r] = V::fma(V::cvt(V::iadd(lo, hi)), V::mul(scale, ascale), acc[r]);
        if constexpr (with_min) acc[r] = V::fma(second, V::set1(scaled_sums[r]), acc[r]);
      }
    });
  }
  for (int r = 0; r < R; ++r) store_row<V>(c, r0 + r, acc[r]);
}

template <class V, int32_t L>
inline typename V::F load_weights(const uint8_t* strip, int64_t k) {
  const uint8_t* p = strip + k * unit_bytes(L);
  if constexpr (L == kF32) return V::load(reinterpret_cast<const float*>(p));
  return V::load_f16(reinterpret_cast<const uint16_t*>(p));
}

// Float weights: lane sums over k ≡ 0, 1, 2, 3 (mod 4) separately, then (0 + 1) + (2 + 3).
template <class V, int32_t L, int R>
inline void float_rows(const StripCall& c, int64_t r0) {
  using F = typename V::F;
  const auto* x = static_cast<const float*>(c.act) + r0 * c.k;
  F acc[R][4];
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < 4; ++j) acc[r][j] = V::fzero();
  }
  int64_t k = 0;
  for (; k + 4 <= c.k; k += 4) {
    for (int j = 0; j < 4; ++j) {
      const F w = load_weights<V, L>(c.strip, k + j);
      for (int r = 0; r < R; ++r) {
        acc[r][j] = V::fma(w, V::set1(x[r * c.k + k + j]), acc[r][j]);
      }
    }
  }
  for (int j = 0; k < c.k; ++k, ++j) {
    const F w = load_weights<V, L>(c.strip, k);
    for (int r = 0; r < R; ++r) acc[r][j] = V::fma(w, V::set1(x[r * c.k + k]), acc[r][j]);
  }
  for (int r = 0; r < R; ++r) {
    const F sum = V::add(V::add(acc[r][0], acc[r][1]), V::add(acc[r][2], acc[r][3]));
    store_row<V>(c, r0 + r, sum);
  }
}

// bf16 weights: even and odd pairs of k in two sums, then their sum.
template <class V, int R>
inline void pair_rows(const StripCall& c, int64_t r0) {
  using F = typename V::F;
  using Pair = typename V::Pair;
  const int64_t pairs = c.k / 2;
  // Rows as pairs: floats as they are, or bf16 in padded rows.
  const int64_t stride = V::bf16 ? bf16_row_bytes(c.k) : 4 * c.k;
  const auto* act = static_cast<const uint8_t*>(c.act) + r0 * stride;
  const auto* strip = reinterpret_cast<const uint16_t*>(c.strip);
  const auto x = [&](int64_t r, int64_t d) {
    return V::spread(reinterpret_cast<const Pair*>(act + r * stride) + d);
  };
  F acc[R][2];
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = V::fzero();
  int64_t d = 0;
  for (; d + 2 <= pairs; d += 2) {
    unrolled<2>([&](auto j) __attribute__((always_inline)) {
      const auto w = V::load_pairs(strip + (d + j) * 2 * kStrip);
      unrolled<R>([&](auto r) __attribute__((always_inline)) {
        acc[r][j] = V::dot2(w, x(r, d + j), acc[r][j]);
      });
    });
  }
  if (d < pairs) {
    const auto w = V::load_pairs(strip + d * 2 * kStrip);
    for (int r = 0; r < R; ++r) acc[r][0] = V::dot2(w, x(r, d), acc[r][0]);
  }
  for (int r = 0; r < R; ++r) store_row<V>(c, r0 + r, V::add(acc[r][0], acc[r][1]));
}

template <class V, int32_t L, int R>
inline void rows(const StripCall& c, int64_t r0) {
  if constexpr (L == kBF16) {
    pair_rows<V, R>(c, r0);
  } else if constexpr (is_float(L)) {
    float_rows<V, L, R>(c, r0);
  } else {
    quant_rows<V, L, R>(c, r0);
  }
}

template <class V, int32_t L, int R>
inline void rest_of_rows(const StripCall& c, int64_t r0) {
  if constexpr (R > 0) {
    if (c.r1 - r0 == R) return rows<V, L, R>(c, r0);
    rest_of_rows<V, L, R - 1>(c, r0);
  }
}

// A strip stays in the first-level cache while blocks of rows pass over it.
template <class V, int32_t L>
void strip_of(const StripCall& c) {
  constexpr int most = L == kBF16 ? V::pair_rows : is_float(L) ? V::float_rows : V::quant_rows;
  static_assert(kPanelRows % most == 0);  // a block of rows lies in one panel
  int64_t r = c.r0;
  for (; r + most <= c.r1; r += most) rows<V, L, most>(c, r);
  rest_of_rows<V, L, most - 1>(c, r);
}

template <class V>
void strip(int32_t layout, const StripCall& c) {
  switch (layout) {
    case kU4F16: return strip_of<V, kU4F16>(c);
    case kU4mF16: return strip_of<V, kU4mF16>(c);
    case kU4mF32: return strip_of<V, kU4mF32>(c);
    case kS8F16: return strip_of<V, kS8F16>(c);
    case kU8mF16: return strip_of<V, kU8mF16>(c);
    case kU8mF32: return strip_of<V, kU8mF32>(c);
    case kS8hF32: return strip_of<V, kS8hF32>(c);
    case kF32: return strip_of<V, kF32>(c);
    case kF16: return strip_of<V, kF16>(c);
    default: return strip_of<V, kBF16>(c);
  }
}

// One activation row to int8: per block of 32, scale = amax / 127, code = round to nearest even of
// x · (1 / scale). A block with a NaN or an infinity gets the scale NaN, which makes this row's
// outputs NaN and nobody else's.
template <class V>
inline void quantize_row(const float* x, int64_t k, int64_t row, void* act) {
  const int64_t lane = row % kPanelRows;
  auto* codes = const_cast<int8_t*>(panel_codes(act, row, k));
  auto* rest = codes - lane * kBlock;
  for (int64_t b = 0; b < k / kBlock; ++b, x += kBlock, codes += kPanelBlock, rest += kPanelBlock) {
    float amax;
    const bool finite = V::block_amax(x, &amax);
    const float d = finite ? amax / 127.0f : NAN;
    int32_t sums[2] = {0, 0};
    // Below the normal range 1/d overflows; such values are zero beside anything that matters.
    if (finite && d >= 1.17549435e-38f) {
      V::block_codes(x, 1.0f / d, codes, sums);
    } else {
      std::memset(codes, 0, kBlock);
    }
    const float scaled_sum = d * static_cast<float>(sums[0] + sums[1]);
    const int32_t offsets[2] = {-128 * sums[0], -128 * sums[1]};
    std::memcpy(rest + kPanelScale + 4 * lane, &d, 4);
    std::memcpy(rest + kPanelScaledSum + 4 * lane, &scaled_sum, 4);
    std::memcpy(rest + kPanelOffset + 4 * lane, &offsets[0], 4);
    std::memcpy(rest + kPanelOffset + 4 * (kPanelRows + lane), &offsets[1], 4);
  }
}

// The instruction set's int8 rate with nothing else in the way: eight independent sums.
template <class V>
int64_t burn(int64_t loops) {
  constexpr int sums = 4;
  typename V::C groups[8];
  alignas(64) uint8_t codes[64] = {1, 2, 3};
  alignas(64) int8_t x[kBlock] = {1, 2, 3};
  for (auto& group : groups) group = V::load_codes(codes);
  typename V::I lo[sums], hi[sums];
  for (int i = 0; i < sums; ++i) lo[i] = hi[i] = V::izero();
  for (int64_t loop = 0; loop < loops; ++loop) {
    unrolled<sums>([&](auto i) { V::dots_u5(lo[i], hi[i], groups, x); });
    __asm__ volatile("" ::: "memory");  // x is read again
  }
  typename V::I total = V::izero();
  for (int i = 0; i < sums; ++i) total = V::iadd(total, V::iadd(lo[i], hi[i]));
  float out[kStrip];
  V::store(out, V::cvt(total));
  return out[0] < 0.0f ? 0 : loops * sums * kBlock * kStrip;
}

}  // namespace
}  // namespace octavo
