// Paged attention by online softmax (Milakov and Gimelshein, 2018) over tiles of 64 keys.
//
// Tiles start at positions that are multiples of 64 and a query's arithmetic inside a tile does not
// depend on the other queries, so a token's result is the same whether it is computed alone, in a
// chunk or in a batch. Per tile: scores = scale · q·k summed over the dimension in order; keys the
// query does not see weigh 0; then the running maximum, sum and output are rescaled.
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

struct AttentionScratch {
  float* keys;    // [dim][64]
  float* values;  // [64][dim]
  float* scores;  // [queries][64]
  float* out;     // [queries][dim]
  float* top;     // [queries] running maximum
  float* sum;     // [queries]
};

inline AttentionScratch split_scratch(const AttentionCall& c) {
  const int64_t queries = static_cast<int64_t>(kQueryTile) * c.heads;
  AttentionScratch s;
  s.keys = c.scratch;
  s.values = s.keys + kKeyTile * c.dim;
  s.scores = s.values + kKeyTile * c.dim;
  s.out = s.scores + queries * kKeyTile;
  s.top = s.out + queries * c.dim;
  s.sum = s.top + queries;
  return s;
}

template <class V>
inline void widen(const uint16_t* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) V::store(to + i, V::load_bf16(from + i));
  for (; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, 4);
  }
}

// Keys [tile, tile + 64) that lie in [first, end), widened to float. Values outside are zero, so
// that neither foreign nor unwritten memory can reach a result (0 · NaN is NaN); keys outside need
// not be, as their scores are replaced.
template <class V>
inline void load_tile(const AttentionCall& c, int64_t tile, int64_t first, int64_t end,
                      const AttentionScratch& s) {
  const int64_t dim = c.dim, size = c.block_size;
  const int64_t lo = std::max(tile, first), hi = std::min(tile + kKeyTile, end);
  std::fill(s.values, s.values + (lo - tile) * dim, 0.0f);
  std::fill(s.values + (hi - tile) * dim, s.values + kKeyTile * dim, 0.0f);
  for (int64_t p = lo; p < hi;) {
    const uint16_t* block = c.pool + c.table[p / size] * c.block_elements;
    const int64_t entry = p % size;
    const int64_t count = std::min(size - entry, hi - p);
    // The next block lies anywhere: ask for it while this one is widened.
    if (p + count < end) {
      const uint16_t* next = c.pool + c.table[(p + count) / size] * c.block_elements;
      for (int64_t i = 0; i < size * dim; i += 32) {
        __builtin_prefetch(next + c.k_offset + i);
        __builtin_prefetch(next + c.v_offset + i);
      }
    }
    // Whole vectors of keys where the block has them: a key beyond the end does no harm.
    const int64_t whole = std::min({(count + 15) / 16 * 16, size - entry, kKeyTile - (p - tile)});
    for (int64_t d = 0; d < dim; ++d) {
      widen<V>(block + c.k_offset + d * size + entry, whole, s.keys + d * kKeyTile + (p - tile));
    }
    widen<V>(block + c.v_offset + entry * dim, count * dim, s.values + (p - tile) * dim);
    p += count;
  }
}

inline const float* query_at(const AttentionCall& c, int64_t j) {
  return c.q + j / c.heads * c.stride + j % c.heads * c.dim;
}

// scores[j0 .. j0+N) × 64 keys.
template <class V, int N>
inline void score_tile(const AttentionCall& c, int64_t j0, const AttentionScratch& s) {
  using F = typename V::F;
  const float* q[N];
  for (int j = 0; j < N; ++j) q[j] = query_at(c, j0 + j);
  for (int64_t key = 0; key < kKeyTile; key += 32) {
    F a[N], b[N];
    unrolled<N>([&](auto j) { a[j] = b[j] = V::fzero(); });
    for (int64_t d = 0; d < c.dim; ++d) {
      const F k0 = V::load(s.keys + d * kKeyTile + key);
      const F k1 = V::load(s.keys + d * kKeyTile + key + 16);
      unrolled<N>([&](auto j) {
        const F x = V::set1(q[j][d]);
        a[j] = V::fma(k0, x, a[j]);
        b[j] = V::fma(k1, x, b[j]);
      });
    }
    unrolled<N>([&](auto j) {
      float* row = s.scores + (j0 + j) * kKeyTile + key;
      V::store(row, V::mul(a[j], c.scale));
      V::store(row + 16, V::mul(b[j], c.scale));
    });
  }
}

// Scores of query j to weights; rescales what it has accumulated.
template <class V>
inline void softmax_tile(const AttentionCall& c, int64_t j, int64_t tile,
                         const AttentionScratch& s) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  float* row = s.scores + j * kKeyTile;
  const int64_t position = c.first_position + j / c.heads;
  const int64_t first = c.window ? std::max<int64_t>(0, position - c.window + 1) : 0;
  const int64_t lo = std::clamp<int64_t>(first - tile, 0, kKeyTile);
  const int64_t hi = std::clamp<int64_t>(position + 1 - tile, 0, kKeyTile);
  if (lo >= hi) {
    std::memset(row, 0, sizeof(float) * kKeyTile);
    return;
  }
  std::fill(row, row + lo, none);
  std::fill(row + hi, row + kKeyTile, none);
  float top = s.top[j];
  for (int64_t i = lo; i < hi; ++i) top = std::max(top, row[i]);
  exp_all<V>(row, kKeyTile, top, row);
  auto sum = V::fzero();
  for (int64_t i = 0; i < kKeyTile; i += 16) sum = V::add(sum, V::load(row + i));
  float rescale = s.top[j] - top;
  exp_all<V>(&rescale, 1, 0.0f, &rescale);
  s.sum[j] = s.sum[j] * rescale + lanes_sum<V>(sum);
  s.top[j] = top;
  if (rescale != 1.0f) {
    float* out = s.out + j * c.dim;
    for (int64_t d = 0; d < c.dim; ++d) out[d] *= rescale;
  }
}

// out[j0 .. j0+N) += weights · values for the D·16 dimensions from d on, keys in order.
template <class V, int N, int D>
inline void value_columns(const AttentionCall& c, int64_t j0, int64_t d,
                          const AttentionScratch& s) {
  using F = typename V::F;
  F acc[N][D];
  unrolled<N>([&](auto j) {
    unrolled<D>([&](auto i) { acc[j][i] = V::load(s.out + (j0 + j) * c.dim + d + 16 * i); });
  });
  for (int64_t key = 0; key < kKeyTile; ++key) {
    unrolled<D>([&](auto i) {
      const F v = V::load(s.values + key * c.dim + d + 16 * i);
      unrolled<N>([&](auto j) {
        acc[j][i] = V::fma(v, V::set1(s.scores[(j0 + j) * kKeyTile + key]), acc[j][i]);
      });
    });
  }
  unrolled<N>([&](auto j) {
    unrolled<D>([&](auto i) { V::store(s.out + (j0 + j) * c.dim + d + 16 * i, acc[j][i]); });
  });
}

template <class V, int N>
inline void value_tile(const AttentionCall& c, int64_t j0, const AttentionScratch& s) {
  int64_t d = 0;
  for (; d + 32 <= c.dim; d += 32) value_columns<V, N, 2>(c, j0, d, s);
  for (; d + 16 <= c.dim; d += 16) value_columns<V, N, 1>(c, j0, d, s);
  for (; d < c.dim; ++d) {
    for (int64_t j = j0; j < j0 + N; ++j) {
      float sum = s.out[j * c.dim + d];
      for (int64_t key = 0; key < kKeyTile; ++key) {
        sum = std::fma(s.values[key * c.dim + d], s.scores[j * kKeyTile + key], sum);
      }
      s.out[j * c.dim + d] = sum;
    }
  }
}

// Scores (or, the softmax done, values) of all queries, four at a time.
template <class V, int N = 4, class Tile>
inline void over_queries(int64_t j, int64_t queries, Tile&& tile) {
  for (; j + N <= queries; j += N) tile(std::integral_constant<int, N>{}, j);
  if constexpr (N > 1) over_queries<V, N - 1>(j, queries, tile);
}

template <class V>
void attention(const AttentionCall& c) {
  const AttentionScratch s = split_scratch(c);
  const int64_t queries = static_cast<int64_t>(c.tokens) * c.heads;
  const int64_t end = c.first_position + c.tokens;
  const int64_t first = c.window ? std::max<int64_t>(0, c.first_position - c.window + 1) : 0;
  std::memset(s.out, 0, sizeof(float) * static_cast<size_t>(queries * c.dim));
  std::fill(s.top, s.top + queries, -std::numeric_limits<float>::infinity());
  std::fill(s.sum, s.sum + queries, 0.0f);
  for (int64_t tile = first / kKeyTile * kKeyTile; tile < end; tile += kKeyTile) {
    load_tile<V>(c, tile, first, end, s);
    over_queries<V>(0, queries, [&](auto n, int64_t j) { score_tile<V, n>(c, j, s); });
    for (int64_t j = 0; j < queries; ++j) softmax_tile<V>(c, j, tile, s);
    over_queries<V>(0, queries, [&](auto n, int64_t j) { value_tile<V, n>(c, j, s); });
  }
  for (int64_t j = 0; j < queries; ++j) {
    float* out = c.out + j / c.heads * c.stride + j % c.heads * c.dim;
    const float inverse = 1.0f / s.sum[j];
    for (int64_t d = 0; d < c.dim; ++d) out[d] = s.out[j * c.dim + d] * inverse;
  }
}

}  // namespace
}  // namespace octavo
