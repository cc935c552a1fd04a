// The matrix unit's strips, written once over its tiles (tiles.h).
//
// int8: a block of 32 values × 8 activation rows × a strip's 16 rows is one tile product with exact
// int32 sums; scales and mins are applied by the same float operations in the same order as in
// strip.h, so a row is bit-equal whichever of the two computed it. bf16: sums stay in the tiles over
// the whole of k, and every number of rows goes this way.
#pragma once
#include "avx512_bf16.h"
#include "tiles.h"

namespace octavo {
namespace {

using Wide = Avx512Bf16;

constexpr int64_t kSumRows = kPanelRows;       // rows of a tile of sums
constexpr int64_t kChunk = 32;                 // blocks whose codes are unpacked at once
constexpr int64_t kGroup = 4;                  // blocks whose sums are in flight together
constexpr int64_t kMostStripRows = 64;         // rows of one call, see linear.cpp

// Loads a shape once per thread; a change costs hundreds of cycles.
template <class T>
struct Configured {
  static TileShape& current() {
    static thread_local TileShape shape = TileShape::none;
    return shape;
  }
  static void set(TileShape shape) {
    if (current() == shape) return;
    T::configure(TileConfig(shape));
    current() = shape;
  }
  static void release() {
    if (current() == TileShape::none) return;
    T::release();
    current() = TileShape::none;
  }
};

// Codes of `blocks` blocks as bytes, 512 a block: [group][row][4].
template <int32_t L>
inline const uint8_t* byte_codes(const uint8_t* block, int64_t blocks, uint8_t* room,
                                 int64_t* stride) {
  *stride = unit_bytes(L);
  if constexpr (!is_u4(L)) return block;
  *stride = 512;
  for (int64_t b = 0; b < blocks; ++b, block += unit_bytes(L)) {
    Wide::C groups[8];
    load_codes<Wide, true>(block, groups);
    for (int g = 0; g < 8; ++g) _mm512_store_si512(room + 512 * b + 64 * g, groups[g]);
  }
  return room;
}

// sums[0] (and sums[1] for the second half) = codes · activations of one block and one panel.
template <class T, int32_t L, int Tile>
inline void block_sums(const int8_t* x, const uint8_t* codes, int32_t (*sums)[kSumRows * kStrip]) {
  constexpr int left = 4 + Tile % 2, right = 6 + Tile % 2;
  constexpr int parts = L == kS8hF32 ? 2 : 1;
  unrolled<parts>([&](auto part) {
    constexpr int sum = (Tile * parts + part) % 4;
    T::template zero<sum>();
    T::template load<left>(x + 16 * part, kBlock);
    T::template load<right>(codes + 256 * part, 64);
    T::template dot_int8<sum, left, right>();
    T::template store<sum>(sums[part], 64);
  });
}

// Adds one block's contribution to a panel's accumulators, as quant_rows does.
template <int32_t L>
inline void add_block(const uint8_t* block, const int8_t* panel,
                      const int32_t (*sums)[kSumRows * kStrip], Wide::F* acc) {
  using V = Wide;
  constexpr bool with_min = L == kU4mF16 || L == kU4mF32 || L == kU8mF16 || L == kU8mF32;
  constexpr bool wide_scale = L == kU4mF32 || L == kU8mF32 || L == kS8hF32;
  constexpr bool halves = L == kS8hF32;
  constexpr bool is_signed = L == kS8F16 || L == kS8hF32;
  constexpr int offset = L == kU4F16 ? 8 : is_signed ? 128 : 0;
  const uint8_t* q = block + (is_u4(L) ? 256 : 512);
  V::F scale, second;
  if constexpr (wide_scale) {
    scale = V::load(reinterpret_cast<const float*>(q));
    second = V::load(reinterpret_cast<const float*>(q + 64));
  } else {
    scale = V::load_f16(reinterpret_cast<const uint16_t*>(q));
    second = with_min ? V::load_f16(reinterpret_cast<const uint16_t*>(q + 32)) : V::fzero();
  }
  const auto* scales = reinterpret_cast<const float*>(panel + kPanelScale);
  const auto* scaled_sums = reinterpret_cast<const float*>(panel + kPanelScaledSum);
  const auto* offsets = reinterpret_cast<const int32_t*>(panel + kPanelOffset);
  unrolled<kSumRows>([&](auto r) __attribute__((always_inline)) {
    V::I dot = _mm512_load_si512(sums[0] + r * kStrip);
    if constexpr (offset != 0) dot = V::iadd(dot, V::start<offset>(offsets + r));
    if constexpr (halves) {
      V::I high = _mm512_load_si512(sums[1] + r * kStrip);
      high = V::iadd(high, V::start<offset>(offsets + kPanelRows + r));
      acc[r] = V::fma(V::cvt(dot), V::mul(scale, scales[r]), acc[r]);
      acc[r] = V::fma(V::cvt(high), V::mul(second, scales[r]), acc[r]);
    } else {
      if constexpr (offset != 0) dot = V::iadd(dot, V::start<offset>(offsets + kPanelRows + r));
      acc[r] = V::fma(V::cvt(dot), V::mul(scale, scales[r]), acc[r]);
      if constexpr (with_min) acc[r] = V::fma(second, V::set1(scaled_sums[r]), acc[r]);
    }
  });
}

// One panel against the blocks [0, blocks) of a chunk. Sums of the next group of blocks are on their
// way through the matrix unit while this group's are scaled.
template <class T, int32_t L>
inline void panel_chunk(const uint8_t* strip, const uint8_t* codes, int64_t stride,
                        const int8_t* panel, int64_t blocks, Wide::F* acc) {
  constexpr int parts = L == kS8hF32 ? 2 : 1;
  alignas(64) int32_t sums[2][kGroup][parts][kSumRows * kStrip];
  const auto start = [&](int64_t first) __attribute__((always_inline)) {
    unrolled<kGroup>([&](auto i) __attribute__((always_inline)) {
      const int64_t b = first + i;
      if (b >= blocks) return;
      block_sums<T, L, i>(panel + b * kPanelBlock, codes + b * stride, sums[first / kGroup % 2][i]);
    });
  };
  start(0);
  for (int64_t first = 0; first < blocks; first += kGroup) {
    start(first + kGroup);
    const int64_t last = std::min(first + kGroup, blocks);
    for (int64_t b = first; b < last; ++b) {
      add_block<L>(strip + b * unit_bytes(L), panel + b * kPanelBlock,
                   sums[first / kGroup % 2][b - first], acc);
    }
  }
}

template <class T, int32_t L>
void quant_tiles(const StripCall& c) {
  Configured<T>::set(L == kS8hF32 ? TileShape::int8_half : TileShape::int8_block);
  alignas(64) uint8_t room[is_u4(L) ? kChunk * 512 : 64];
  alignas(64) float kept[kMostStripRows * kStrip];
  const int64_t rows = c.r1 - c.r0, blocks = c.k / kBlock;
  std::memset(kept, 0, sizeof(float) * static_cast<size_t>((rows + 7) / 8 * 8 * kStrip));
  for (int64_t b = 0; b < blocks; b += kChunk) {
    const int64_t some = std::min(kChunk, blocks - b);
    const uint8_t* strip = c.strip + b * unit_bytes(L);
    int64_t stride;
    const uint8_t* codes = byte_codes<L>(strip, some, room, &stride);
    for (int64_t r = 0; r < rows; r += kPanelRows) {
      const int8_t* panel = panel_codes(c.act, c.r0 + r, c.k) + b * kPanelBlock;
      Wide::F acc[kSumRows];
      for (int i = 0; i < kSumRows; ++i) acc[i] = Wide::load(kept + (r + i) * kStrip);
      panel_chunk<T, L>(strip, codes, stride, panel, some, acc);
      for (int i = 0; i < kSumRows; ++i) Wide::store(kept + (r + i) * kStrip, acc[i]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) store_row<Wide>(c, c.r0 + r, Wide::load(kept + r * kStrip));
}

// Up to four panels of rows at once, which share the weights' tiles.
template <class T, int P>
inline void bf16_panels(const StripCall& c, int64_t r0) {
  const int64_t stride = bf16_row_bytes(c.k);
  const auto* act = static_cast<const uint8_t*>(c.act) + r0 * stride;
  unrolled<P>([&](auto p) { T::template zero<p>(); });
  const auto multiply = [&](const uint8_t* weights, int64_t k) __attribute__((always_inline)) {
    T::template load<6>(weights, 64);
    unrolled<P>([&](auto p) __attribute__((always_inline)) {
      constexpr int left = 4 + p % 2;
      T::template load<left>(act + p * kSumRows * stride + 2 * k, stride);
      T::template dot_bf16<p, left, 6>();
    });
  };
  int64_t k = 0;
  for (; k + kBlock <= c.k; k += kBlock) multiply(c.strip + k * 2 * kStrip, k);
  if (k < c.k) {
    // The rest of a row is padded with zeros; so must the weights be.
    alignas(64) uint8_t rest[kBlock * 2 * kStrip] = {};
    std::memcpy(rest, c.strip + k * 2 * kStrip, static_cast<size_t>((c.k - k) * 2 * kStrip));
    multiply(rest, k);
  }
  alignas(64) float sums[kSumRows * kStrip];
  unrolled<P>([&](auto p) {
    T::template store<p>(sums, 64);
    const int64_t row = r0 + p * kSumRows;
    for (int64_t r = row; r < std::min(row + kSumRows, c.r1); ++r) {
      store_row<Wide>(c, r, Wide::load(sums + (r - row) * kStrip));
    }
  });
}

template <class T>
void bf16_tiles(const StripCall& c) {
  Configured<T>::set(TileShape::bf16_block);
  int64_t r = c.r0;
  for (; c.r1 - r > 3 * kSumRows; r += 4 * kSumRows) bf16_panels<T, 4>(c, r);
  if (c.r1 - r > 2 * kSumRows) return bf16_panels<T, 3>(c, r);
  if (c.r1 - r > kSumRows) return bf16_panels<T, 2>(c, r);
  if (c.r1 - r > 0) bf16_panels<T, 1>(c, r);
}

// Strips with as many rows as this, or more, are faster on the matrix unit.
inline int64_t& tile_rows() {
  static int64_t rows = 8;
  return rows;
}

template <class T>
void tile_strip(int32_t layout, const StripCall& c) {
  if (layout == kBF16) return bf16_tiles<T>(c);
  if (is_float(layout) || c.r1 - c.r0 < tile_rows()) return strip<Wide>(layout, c);
  switch (layout) {
    case kU4F16: return quant_tiles<T, kU4F16>(c);
    case kU4mF16: return quant_tiles<T, kU4mF16>(c);
    case kU4mF32: return quant_tiles<T, kU4mF32>(c);
    case kS8F16: return quant_tiles<T, kS8F16>(c);
    case kU8mF16: return quant_tiles<T, kU8mF16>(c);
    case kU8mF32: return quant_tiles<T, kU8mF32>(c);
    default: return quant_tiles<T, kS8hF32>(c);
  }
}

// The matrix unit's int8 rate from its registers.
template <class T>
int64_t tile_burn(int64_t loops) {
  Configured<T>::set(TileShape::int8_block);
  alignas(64) static const int8_t some[kSumRows * 64] = {1, 2, 3};
  T::template load<4>(some, kBlock);
  T::template load<6>(some, 64);
  unrolled<4>([&](auto i) { T::template zero<i>(); });
  for (int64_t loop = 0; loop < loops; ++loop) {
    unrolled<4>([&](auto i) { T::template dot_int8<i, 4, 6>(); });
  }
  T::release();
  Configured<T>::current() = TileShape::none;
  return loops * 4 * kSumRows * kStrip * kBlock;
}

template <class T>
constexpr Kernels tile_kernels() {
  return {
      tile_strip<T>,     quantize_row<Wide>, to_bf16,
      rms_norm<Wide>,    act_mul<Wide>,      attend_span<Wide>,
      join_spans<Wide>,  scan<Wide>,         weigh<Wide>,
      select<Wide>,       cut<Wide>,          keep<Wide>,         tile_burn<T>,
      Configured<T>::release, tile_rows,
  };
}

}  // namespace
}  // namespace octavo
