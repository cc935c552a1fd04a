// How packed weights lie in memory. One layout for all instruction sets.
//
// A weight [n, k] is cut in strips of 16 rows; a strip is contiguous and independent of the others
// (the last one is padded with zero rows).
//
// Quantised layouts: a strip is k/32 blocks, one after the other. In a block the codes come first,
// in groups of 4 consecutive k for each of the 16 rows, so that one 64-byte load holds
// 16 rows × 4 values, which is what a 4-way int8 dot product instruction accumulates in 16 lanes:
//
//   8-bit codes, 512 bytes:  [group 0..7][row 0..15][4]
//   4-bit codes, 256 bytes:  [j 0..3][row 0..15][4], low nibble: group j, high nibble: group j + 4
//
// then the 16 rows' scales, then their mins (or a second set of scales).
//
//   layout       codes        scale          min            value                       from
//   u4_f16       4-bit        f16            −              d·(q − 8)                   q4_0
//   u4m_f16      4-bit        f16            f16            d·q + m                     q4_1
//   u4m_f32      4-bit        f32            f32            d·q − m (−m is stored)      q4_k
//   s8_f16       8-bit +128   f16            −              d·q                         q5_0, q8_0
//   u8m_f16      8-bit        f16            f16            d·q + m                     q5_1
//   u8m_f32      8-bit        f32            f32            d·q − m (−m is stored)      q5_k
//   s8h_f32      8-bit +128   f32 × 2        −              d·q, a scale per 16 values  q6_k
//
// Float layouts, of the source's own type: f32 and f16 [k][row 0..15], bf16 [k / 2][row 0..15][2].
#pragma once
#include <cstdint>

#include "linear.h"

namespace octavo {

enum Layout : int32_t {
  kU4F16 = 0, kU4mF16, kU4mF32, kS8F16, kU8mF16, kU8mF32, kS8hF32, kF32, kF16, kBF16,
};

constexpr int64_t kStrip = 16;  // rows per strip
constexpr int64_t kBlock = 32;  // values per quantised block

// Bytes of one block (quantised) or of one k (float) of a strip.
constexpr int64_t unit_bytes(int32_t layout) {
  switch (layout) {
    case kU4F16: return 256 + 32;
    case kU4mF16: return 256 + 64;
    case kU4mF32: return 256 + 128;
    case kS8F16: return 512 + 32;
    case kU8mF16: return 512 + 64;
    case kU8mF32: return 512 + 128;
    case kS8hF32: return 512 + 128;
    case kF32: return 64;
    default: return 32;  // f16, bf16
  }
}

constexpr bool is_float(int32_t layout) { return layout >= kF32; }
constexpr bool is_u4(int32_t layout) { return layout <= kU4mF32; }

constexpr int64_t strip_bytes(int32_t layout, int64_t k) {
  return unit_bytes(layout) * (is_float(layout) ? k : k / kBlock);
}

// int8 activations lie in panels of 8 rows, block by block, so that a kernel reaches all 8 rows of a
// block from one pointer with fixed offsets:
//
//   panel, block b:  codes [8 rows][32] · scale f32 [8] · scale · sum f32 [8] · offsets i32 [2][8]
//
// sum: of the 32 codes. offsets: −128 · the sum of codes [0, 16) and of codes [16, 32); a dot product
// over weight codes stored +128 begins there and ends exact.
constexpr int64_t kPanelRows = 8;
constexpr int64_t kPanelScale = kPanelRows * kBlock;  // byte offsets in a panel's block
constexpr int64_t kPanelScaledSum = kPanelScale + kPanelRows * 4;
constexpr int64_t kPanelOffset = kPanelScaledSum + kPanelRows * 4;
constexpr int64_t kPanelBlock = kPanelOffset + 2 * kPanelRows * 4;
static_assert(kPanelBlock % 64 == 0);

constexpr int64_t panel_bytes(int64_t k) { return k / kBlock * kPanelBlock; }

// Where row `row`'s lane of a panel begins; `code` bytes, and the offsets above for the rest.
inline const int8_t* panel_codes(const void* act, int64_t row, int64_t k) {
  return static_cast<const int8_t*>(act) + row / kPanelRows * panel_bytes(k) +
         row % kPanelRows * kBlock;
}

// bf16 activations: rows of k values, each padded with zeros to whole cache lines, in whole panels.
constexpr int64_t bf16_row_bytes(int64_t k) { return (2 * k + 63) / 64 * 64; }

// One strip of a linear for rows [r0, r1); what an instruction set implements.
struct StripCall {
  const uint8_t* strip;
  const uint8_t* ahead;  // the strip after this one, fetched while this one is computed; or null
  const void* act;
  int64_t k, r0, r1;
  float* out;  // column 0 of the strip, row 0
  int64_t ldo;
  const float* bias;  // of the strip's rows, or null
  int64_t valid;      // rows of the strip that exist, 1..16
  bool accumulate;
};

}  // namespace octavo
