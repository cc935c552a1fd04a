// Row-wise kernels over 16-lane vectors: norms, activations, exponentials. V::sum adds the lanes in
// a fixed tree (i and i + 8, then + 4, + 2, + 1), so that it does not depend on the compiler.
#pragma once
#include <cmath>
#include <cstdint>

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
void exp_all(const float* x, int64_t n, float top, float* out) {
  const auto minus_top = V::set1(-top);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t m = n - i < 16 ? n - i : 16;
    V::store_n(out + i, exp_lanes<V>(V::add(V::load_n(x + i, m), minus_top)), m);
  }
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
