// Attention over one span of cached keys, written once over a vector type of 16 lanes.
//
// A span is kSpan keys from a position that is a multiple of kSpan. A query's arithmetic in a span
// depends on nothing but its own keys, and spans are joined in order (Milakov and Gimelshein, 2018),
// so a token's result is the same whether it is computed alone, in a chunk, in a batch, or with its
// spans spread over threads. Products are of pairs (see csrc/kv.h): V says how a pair of floats is
// held (`Pair`), broadcast (`Spread`) and multiplied with 16 pairs of bf16 (`dot2`).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../kernels.h"
#include "rowwise.h"
#include "unroll.h"

namespace octavo {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;  // scores are kept for 2^x, not e^x
constexpr int64_t kLanes = 16;
constexpr int64_t kGroups = kSpan / kLanes;

// A span's keys in groups of 16: group g's keys of dimension pair d at k[g] + d · k_stride, its values
// of entry pair e at v[g] + e · 2 · dim. Groups [begin, end) hold keys.
struct SpanKeys {
  const uint16_t* k[kGroups];
  const uint16_t* v[kGroups];
  int64_t k_stride;
  int64_t begin, end;
  const float *k_scales, *v_scales;  // [kSpan], or null
};

inline void widen_codes(const uint16_t* from, int64_t n, uint16_t* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * 2);
}

// int8 codes are exact in bf16.
inline void widen_codes(const int8_t* from, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = from[i];
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    to[i] = static_cast<uint16_t>(bits >> 16);
  }
}

// Keys and values of [c.first, c.last) as bf16 in scratch: for codes of another type, and for blocks
// with fewer entries than a vector has lanes.
template <class Code>
inline void gather_keys(const SpanCall& c, int64_t base, uint16_t* scratch, SpanKeys* s) {
  const int64_t size = c.kv.block_size, dim = c.kv.dim;
  auto* k = scratch;
  auto* v = k + kSpan * dim;
  auto* scales = reinterpret_cast<float*>(v + kSpan * dim);
  s->k_stride = 2 * kLanes;
  for (int64_t g = s->begin; g < s->end; ++g) {
    s->k[g] = k + g * kLanes * dim;
    s->v[g] = v + g * kLanes * dim;
  }
  for (int64_t p = c.first / 2 * 2; p < c.last;) {
    const int64_t entry = p % size, at = p - base;
    const int64_t n = std::min(size - entry, kLanes - at % kLanes);
    const uint8_t* keys = c.pool + c.table[p / size] * c.kv.block_bytes() + c.offset;
    const uint8_t* values = keys + c.kv.side_bytes();
    const auto* from_k = reinterpret_cast<const Code*>(keys) + 2 * entry;
    const auto* from_v = reinterpret_cast<const Code*>(values) + entry * dim;
    uint16_t* to = k + at / kLanes * kLanes * dim + 2 * (at % kLanes);
    for (int64_t d = 0; d < dim / 2; ++d) {
      widen_codes(from_k + d * 2 * size, 2 * n, to + d * s->k_stride);
    }
    widen_codes(from_v, n * dim, v + at * dim);
    if (c.kv.type == KvType::int8) {
      std::memcpy(scales + at, keys + c.kv.codes() + 4 * entry, static_cast<size_t>(n) * 4);
      std::memcpy(scales + kSpan + at, values + c.kv.codes() + 4 * entry,
                  static_cast<size_t>(n) * 4);
    }
    p += n;
  }
  if (c.kv.type == KvType::int8) {
    s->k_scales = scales;
    s->v_scales = scales + kSpan;
  }
}

inline SpanKeys span_keys(const SpanCall& c, int64_t base, uint16_t* scratch) {
  SpanKeys s{};
  s.begin = (c.first - base) / kLanes;
  s.end = (c.last - base + kLanes - 1) / kLanes;
  const int64_t size = c.kv.block_size;
  if (c.kv.type == KvType::int8) {
    gather_keys<int8_t>(c, base, scratch, &s);
  } else if (size < kLanes) {
    gather_keys<uint16_t>(c, base, scratch, &s);
  } else {
    s.k_stride = 2 * size;
    for (int64_t g = s.begin; g < s.end; ++g) {
      const int64_t p = base + g * kLanes, entry = p % size;
      const uint8_t* keys = c.pool + c.table[p / size] * c.kv.block_bytes() + c.offset;
      s.k[g] = reinterpret_cast<const uint16_t*>(keys) + 2 * entry;
      s.v[g] = reinterpret_cast<const uint16_t*>(keys + c.kv.side_bytes()) + entry * c.kv.dim;
    }
  }
  return s;
}

// Scores of queries [j0, j0 + N) and groups [g, g + G).
template <class V, int N, int G>
inline void score(const SpanCall& c, const SpanKeys& s, const typename V::Pair* q, int64_t j0,
                  int64_t g, float* scores) {
  using F = typename V::F;
  const int64_t pairs = c.kv.dim / 2;
  F acc[N][G];
  unrolled<N>([&](auto n) { unrolled<G>([&](auto i) { acc[n][i] = V::fzero(); }); });
  for (int64_t d = 0; d < pairs; ++d) {
    typename V::Wide w[G];
    unrolled<G>([&](auto i) { w[i] = V::load_pairs(s.k[g + i] + d * s.k_stride); });
    unrolled<N>([&](auto n) {
      const auto x = V::spread(q + (j0 + n) * pairs + d);
      unrolled<G>([&](auto i) { acc[n][i] = V::dot2(w[i], x, acc[n][i]); });
    });
    // The group's values have as many lines as it has dimension pairs; they are needed soon.
    if (j0 == 0) unrolled<G>([&](auto i) { __builtin_prefetch(s.v[g + i] + d * 2 * kLanes); });
  }
  unrolled<N>([&](auto n) {
    unrolled<G>([&](auto i) {
      F x = V::mul(acc[n][i], c.scale * kLog2E);
      if (s.k_scales) x = V::mulv(x, V::load(s.k_scales + (g + i) * kLanes));
      V::store(scores + (j0 + n) * kSpan + (g + i) * kLanes, x);
    });
  });
}

template <class V, int N>
inline void score_rows(const SpanCall& c, const SpanKeys& s, const typename V::Pair* q, int64_t j0,
                       float* scores) {
  constexpr int G = V::attention_groups;
  int64_t g = s.begin;
  for (; g + G <= s.end; g += G) score<V, N, G>(c, s, q, j0, g, scores);
  for (; g < s.end; ++g) score<V, N, 1>(c, s, q, j0, g, scores);
}

// Query j's scores to weights, as pairs in the same place; its maximum and sum.
template <class V>
inline void weigh(const SpanCall& c, const SpanKeys& s, int64_t j, int64_t base, float* row) {
  const int64_t position = c.positions[j], begin = s.begin * kLanes, end = s.end * kLanes;
  const int64_t seen = c.window ? std::max<int64_t>(0, position - c.window + 1) : 0;
  const int64_t lo = std::clamp(seen - base, begin, end);
  const int64_t hi = std::clamp(position + 1 - base, begin, end);
  auto* pairs = reinterpret_cast<typename V::Pair*>(row);
  c.out.top[j] = kNoScore;
  c.out.sum[j] = 0.0f;
  if (lo >= hi) {
    std::fill(row + begin, row + end, 0.0f);
  } else {
    std::fill(row + begin, row + lo, kNoScore);
    std::fill(row + hi, row + end, kNoScore);
    auto most = V::set1(kNoScore);
    for (int64_t i = begin; i < end; i += kLanes) most = V::max(V::load(row + i), most);
    const float top = V::most(most);
    const auto minus_top = V::set1(-top);
    auto sum = V::fzero();
    for (int64_t i = begin; i < end; i += kLanes) {
      auto p = exp2_lanes<V>(V::add(V::load(row + i), minus_top));
      sum = V::add(sum, p);
      if (s.v_scales) {
        // A scale beyond the last key may be anything; its weight is 0 and must stay 0.
        p = V::less(V::fzero(), p, V::mulv(p, V::load(s.v_scales + i)), p);
      }
      V::store(row + i, p);
    }
    c.out.top[j] = top;
    c.out.sum[j] = V::sum(sum);
  }
  V::to_pairs(row + begin, end - begin, pairs + begin / 2);
}

// An eighth of group e / 8 of the next span's keys into the cache.
inline void fetch_ahead(const SpanCall& c, int64_t e) {
  const uint8_t* k = c.ahead[e / 8];
  if (!k) return;
  // A dimension pair's entries of a group are one line, or half a line of int8 codes.
  const int64_t stride = c.kv.type == KvType::bf16 ? 4 * c.kv.block_size : 64;
  const int64_t lines = c.kv.dim / (c.kv.type == KvType::bf16 ? 16 : 32);
  for (int64_t i = e % 8 * lines; i < (e % 8 + 1) * lines; ++i) __builtin_prefetch(k + i * stride);
}

// Weights · values of queries [j0, j0 + N) for D vectors of dimensions from d on.
template <class V, int N, int D>
inline void value_columns(const SpanCall& c, const SpanKeys& s, int64_t base, int64_t j0, int64_t d,
                          const float* weights) {
  using F = typename V::F;
  const int64_t dim = c.kv.dim, first = (c.first - base) / 2, last = (c.last - base + 1) / 2;
  F acc[N][D];
  unrolled<N>([&](auto n) { unrolled<D>([&](auto i) { acc[n][i] = V::fzero(); }); });
  const bool fetch = j0 == 0 && d == 0;
  for (int64_t e = first; e < last; ++e) {
    if (fetch) fetch_ahead(c, e);
    const uint16_t* v = s.v[e / 8] + e % 8 * 2 * dim + 2 * d;
    typename V::Wide w[D];
    unrolled<D>([&](auto i) { w[i] = V::load_pairs(v + 2 * kLanes * i); });
    unrolled<N>([&](auto n) {
      const auto* pairs = reinterpret_cast<const typename V::Pair*>(weights + (j0 + n) * kSpan);
      const auto x = V::spread(pairs + e);
      unrolled<D>([&](auto i) { acc[n][i] = V::dot2(w[i], x, acc[n][i]); });
    });
  }
  unrolled<N>([&](auto n) {
    unrolled<D>([&](auto i) { V::store(c.out.out + (j0 + n) * dim + d + kLanes * i, acc[n][i]); });
  });
}

// The last dim % 16 dimensions.
template <class V>
inline void value_rest(const SpanCall& c, const SpanKeys& s, int64_t base, int64_t j, int64_t d,
                       const float* weights) {
  const int64_t dim = c.kv.dim, first = (c.first - base) / 2, last = (c.last - base + 1) / 2;
  const auto* pairs = reinterpret_cast<const typename V::Pair*>(weights + j * kSpan);
  for (; d < dim; ++d) {
    float sum = 0.0f;
    for (int64_t e = first; e < last; ++e) {
      const uint16_t* v = s.v[e / 8] + e % 8 * 2 * dim + 2 * d;
      float p[2];
      V::from_pair(pairs + e, p);
      sum = std::fma(bf16_to_float(v[0]), p[0], sum);
      sum = std::fma(bf16_to_float(v[1]), p[1], sum);
    }
    c.out.out[j * dim + d] = sum;
  }
}

template <class V, int N>
inline void value_rows(const SpanCall& c, const SpanKeys& s, int64_t base, int64_t j0,
                       const float* weights) {
  constexpr int D = V::attention_groups;
  int64_t d = 0;
  for (; d + D * kLanes <= c.kv.dim; d += D * kLanes) {
    value_columns<V, N, D>(c, s, base, j0, d, weights);
  }
  for (; d + kLanes <= c.kv.dim; d += kLanes) value_columns<V, N, 1>(c, s, base, j0, d, weights);
  for (int64_t j = j0; d < c.kv.dim && j < j0 + N; ++j) value_rest<V>(c, s, base, j, d, weights);
}

// work(constant N, j0) over all queries, N at a time.
template <int N, class Work>
inline void over_queries(int64_t j, int64_t queries, Work&& work) {
  for (; j + N <= queries; j += N) work(std::integral_constant<int, N>{}, j);
  if constexpr (N > 1) over_queries<N - 1>(j, queries, work);
}

template <class V>
void attend_span(const SpanCall& c) {
  constexpr int N = V::attention_queries;
  const int64_t base = c.first / kSpan * kSpan, queries = c.queries, pairs = c.kv.dim / 2;
  auto* q = reinterpret_cast<typename V::Pair*>(c.scratch);
  float* scores = c.scratch + queries * c.kv.dim;
  auto* gathered = reinterpret_cast<uint16_t*>(scores + queries * kSpan);
  const SpanKeys s = span_keys(c, base, gathered);
  for (int64_t j = 0; j < queries; ++j) V::to_pairs(c.q[j], c.kv.dim, q + j * pairs);
  over_queries<N>(0, queries, [&](auto n, int64_t j) { score_rows<V, n>(c, s, q, j, scores); });
  for (int64_t j = 0; j < queries; ++j) weigh<V>(c, s, j, base, scores + j * kSpan);
  over_queries<N>(0, queries, [&](auto n, int64_t j) { value_rows<V, n>(c, s, base, j, scores); });
}

// into = into and from joined: both rescaled to the larger maximum.
template <class V>
void join_spans(const Partial& into, const Partial& from, int64_t queries, int64_t dim) {
  for (int64_t j0 = 0; j0 < queries; j0 += kLanes) {
    const int64_t some = std::min(kLanes, queries - j0);
    float mine[kLanes], other[kLanes];
    const auto a = V::load_n(into.top + j0, some), b = V::load_n(from.top + j0, some);
    const auto top = V::max(a, b);
    // Where neither saw a key, −∞ − −∞ is not a number: such a span leaves things as they are.
    V::store(mine, exp2_lanes<V>(V::less(a, top, V::sub(a, top), V::fzero())));
    V::store(other, exp2_lanes<V>(V::less(b, top, V::sub(b, top), V::fzero())));
    V::store_n(into.top + j0, top, some);
    for (int64_t j = j0; j < j0 + some; ++j) {
      const float x = mine[j - j0], y = other[j - j0];
      into.sum[j] = into.sum[j] * x + from.sum[j] * y;
      float* out = into.out + j * dim;
      const float* fresh = from.out + j * dim;
      for (int64_t d = 0; d < dim; d += kLanes) {
        const int64_t n = std::min(kLanes, dim - d);
        const auto scaled = V::mul(V::load_n(out + d, n), x);
        V::store_n(out + d, V::fma(V::load_n(fresh + d, n), V::set1(y), scaled), n);
      }
    }
  }
}

}  // namespace
}  // namespace octavo
