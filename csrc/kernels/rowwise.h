// Row-wise kernels over 16-lane vectors: norms, activations, exponentials. V::sum adds the lanes in
// a fixed tree (i and i + 8, then + 4, + 2, + 1), so that it does not depend on the compiler.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "../kernels.h"

namespace octavo {
namespace {

// e^x by 2^n · p(f), n = round(x · log2 e), |f| ≤ ln2 / 2 in two steps (Cody and Waite), p the
// Taylor polynomial to f⁶/720: relative error below 2e-7. Clamped: x ≤ −87 gives 0, x ≥ 88 is 88.
template <class V>
inline typename V::F exp_lanes(typename V::F x) {
  using F = typename V::F;
  const F low = V::set1(-87.0f);
  // The NaN of a NaN operand comes out: min and max give their second operand then.
  const F clamped = V::min(V::set1(88.0f), V::max(low, x));
  const auto n = V::nearest(V::mul(clamped, 1.44269504f));
  const F whole = V::cvt(n);
  F f = V::fma(whole, V::set1(-0.693359375f), clamped);
  f = V::fma(whole, V::set1(2.12194440e-4f), f);
  F p = V::set1(1.0f / 720.0f);
  p = V::fma(p, f, V::set1(1.0f / 120.0f));
  p = V::fma(p, f, V::set1(1.0f / 24.0f));
  p = V::fma(p, f, V::set1(1.0f / 6.0f));
  p = V::fma(p, f, V::set1(0.5f));
  p = V::fma(p, f, V::set1(1.0f));
  p = V::fma(p, f, V::set1(1.0f));
  return V::less(x, low, V::fzero(), V::mulv(p, V::pow2(n)));
}

// 2^x for x ≤ 0: n = round(x), p the minimax polynomial of 2^f on |f| ≤ 1/2 with p(0) = 1, relative
// error below 3e-6, a thousandth of what a weight loses as bf16. Exactly 0 for −∞; a NaN stays.
template <class V>
inline typename V::F exp2_lanes(typename V::F x) {
  using F = typename V::F;
  x = V::max(V::set1(V::least_pow2), x);  // max gives its second operand where that is a NaN
  const F whole = V::round(x);
  const F f = V::sub(x, whole);
  F p = V::set1(9.582853221e-3f);
  p = V::fma(p, f, V::set1(5.590642621e-2f));
  p = V::fma(p, f, V::set1(2.402409862e-1f));
  p = V::fma(p, f, V::set1(6.931241932e-1f));
  p = V::fma(p, f, V::set1(1.0f));
  return V::times_pow2(p, whole);
}

template <class V>
bool scan(const float* x, int64_t n, float* tops) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  // x − x is 0, or a NaN where x is not finite.
  auto strange = V::fzero();
  for (int64_t i = 0; i < n; i += kScanRun) {
    const int64_t end = std::min(i + kScanRun, n);
    auto top = V::set1(none);
    for (int64_t j = i; j < end; j += 16) {
      const auto v = V::load_or(x + j, std::min<int64_t>(16, end - j), none);
      top = V::max(v, top);
      if (end - j >= 16) strange = V::add(strange, V::sub(v, v));
    }
    for (int64_t j = end - (end - i) % 16; j < end; ++j) {
      strange = V::add(strange, V::set1(x[j] - x[j]));
    }
    tops[i / kScanRun] = V::most(top);
  }
  return V::sum(strange) == 0.0f;
}

template <class V>
void weigh(const float* x, int64_t n, float top, float scale, float* out, float* sums) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  const auto minus_top = V::set1(-top);
  for (int64_t i = 0; i < n; i += kScanRun) {
    const int64_t end = std::min(i + kScanRun, n);
    auto sum = V::fzero();
    for (int64_t j = i; j < end; j += 16) {
      const int64_t m = std::min<int64_t>(16, end - j);
      const auto v = exp_lanes<V>(V::mul(V::add(V::load_or(x + j, m, none), minus_top), scale));
      V::store_n(out + j, v, m);
      sum = V::add(sum, v);
    }
    sums[i / kScanRun] = V::sum(sum);
  }
}

template <class V>
int64_t select(const float* x, int64_t n, float least, float most, int32_t* ids) {
  const auto low = V::set1(least), high = V::set1(most);
  int64_t count = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto v = V::load(x + i);
    const uint32_t hits = V::at_least(v, low) & V::at_least(high, v);
    if (hits) count += V::write_ids(hits, static_cast<int32_t>(i), ids + count);
  }
  for (; i < n; ++i) {
    if (x[i] >= least && x[i] <= most) ids[count++] = static_cast<int32_t>(i);
  }
  return count;
}

template <class V>
void cut(const float* x, int64_t n, float high, float scale, int32_t bins, int32_t* out) {
  const auto top = V::set1(high), last = V::set1(static_cast<float>(bins - 1));
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t m = std::min<int64_t>(16, n - i);
    const auto at = V::mul(V::sub(top, V::load_or(x + i, m, high)), scale);
    V::store_ints(out + i, V::down(V::min(V::max(at, V::fzero()), last)), m);
  }
}

template <class V>
void keep(const float* x, int64_t n, float least, float* weight, float* sums) {
  const auto bound = V::set1(least);
  for (int64_t i = 0; i < n; i += kScanRun) {
    const int64_t end = std::min(i + kScanRun, n);
    auto sum = V::fzero();
    for (int64_t j = i; j < end; j += 16) {
      const int64_t m = std::min<int64_t>(16, end - j);
      const auto v = V::less(V::load_n(x + j, m), bound, V::fzero(), V::load_n(weight + j, m));
      V::store_n(weight + j, v, m);
      sum = V::add(sum, v);
    }
    sums[i / kScanRun] = V::sum(sum);
  }
}

// The numbers of the set bits, from `first` on.
inline int64_t write_bits(uint32_t bits, int32_t first, int32_t* ids) {
  int64_t count = 0;
  for (; bits; bits &= bits - 1) ids[count++] = first + __builtin_ctz(bits);
  return count;
}

template <class V>
void rms_norm(const float* x, const float* weight, int64_t width, float eps, float offset,
              float* out) {
  auto squares = V::fzero();
  for (int64_t i = 0; i < width; i += 16) {
    const auto v = V::load_n(x + i, width - i < 16 ? width - i : 16);
    squares = V::fma(v, v, squares);
  }
  const float mean = V::sum(squares) / static_cast<float>(width);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  const auto add = V::set1(offset);
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t m = width - i < 16 ? width - i : 16;
    const auto w = V::add(V::load_n(weight + i, m), add);
    V::store_n(out + i, V::mulv(V::mul(V::load_n(x + i, m), inverse), w), m);
  }
}

template <class V>
inline typename V::F activate(typename V::F x, int32_t act) {
  using F = typename V::F;
  F z = x;
  if (act == 1) {
    // gelu_tanh(x) = x / (1 + exp(−2·√(2/π)·(x + 0.044715·x³)))
    const F cubic = V::mulv(V::mulv(x, x), x);
    z = V::mul(V::fma(cubic, V::set1(0.044715f), x), 1.5957691216f);
  }
  const F e = exp_lanes<V>(V::sub(V::fzero(), z));
  return V::quotient(x, V::add(V::set1(1.0f), e));
}

template <class V>
void act_mul(const float* gate, const float* up, int64_t n, int32_t act, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t m = n - i < 16 ? n - i : 16;
    const auto g = activate<V>(V::load_n(gate + i, m), act);
    V::store_n(out + i, V::mulv(g, V::load_n(up + i, m)), m);
  }
}

}  // namespace
}  // namespace octavo
