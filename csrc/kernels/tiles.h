// The matrix unit's eight tiles: its real instructions, and the same in plain C++ for tests on
// machines without one. `T` below is one of the two.
//
//   a tile is rows × 64 bytes at most; shapes are set by configure():
//   0–3  sums      8 rows × 16 of 4 bytes
//   4–5  left      8 rows of activations
//   6–7  right     weights, 16 columns × (4 int8 or 2 bf16) a row
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "unroll.h"

namespace octavo {
namespace {

enum class TileShape : int32_t { none, int8_block, int8_half, bf16_block };

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};

  explicit TileConfig(TileShape shape) {
    const bool bf16 = shape == TileShape::bf16_block, half = shape == TileShape::int8_half;
    for (int t = 0; t < 8; ++t) {
      rows[t] = t < 6 ? 8 : bf16 ? 16 : half ? 4 : 8;
      colsb[t] = t < 4 || t > 5 || bf16 ? 64 : half ? 16 : 32;
    }
  }
};

#if defined(__AMX_TILE__)
// In assembly, as the compilers' intrinsics take tile numbers as text, not as constants.
struct HardwareTiles {
  static void configure(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  static void release() { __asm__ volatile("tilerelease" ::: "memory"); }
  template <int Tile>
  OCTAVO_INLINE static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Tile>
  OCTAVO_INLINE static void load(const void* p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  OCTAVO_INLINE static void store(void* p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
  }
  // Signed left, unsigned right.
  template <int Sum, int Left, int Right>
  OCTAVO_INLINE static void dot_int8() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right));
  }
  template <int Sum, int Left, int Right>
  OCTAVO_INLINE static void dot_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right));
  }
};
#endif

struct EmulatedTiles {
  struct State {
    TileConfig config{TileShape::none};
    uint8_t bytes[8][16][64];
  };
  static State& state() {
    static thread_local State s;
    return s;
  }
  static void configure(const TileConfig& config) {
    state().config = config;
    std::memset(state().bytes, 0, sizeof state().bytes);
  }
  static void release() {}
  template <int Tile>
  static void zero() {
    std::memset(state().bytes[Tile], 0, sizeof state().bytes[Tile]);
  }
  template <int Tile>
  static void load(const void* p, int64_t stride) {
    State& s = state();
    zero<Tile>();
    for (int r = 0; r < s.config.rows[Tile]; ++r) {
      std::memcpy(s.bytes[Tile][r], static_cast<const uint8_t*>(p) + r * stride, s.config.colsb[Tile]);
    }
  }
  template <int Tile>
  static void store(void* p, int64_t stride) {
    const State& s = state();
    for (int r = 0; r < s.config.rows[Tile]; ++r) {
      std::memcpy(static_cast<uint8_t*>(p) + r * stride, s.bytes[Tile][r], s.config.colsb[Tile]);
    }
  }
  template <int Sum, int Left, int Right>
  static void dot_int8() {
    State& s = state();
    for (int m = 0; m < s.config.rows[Sum]; ++m) {
      for (int n = 0; n < 16; ++n) {
        int32_t sum;
        std::memcpy(&sum, &s.bytes[Sum][m][4 * n], 4);
        for (int k = 0; k < s.config.colsb[Left]; ++k) {
          sum += static_cast<int8_t>(s.bytes[Left][m][k]) * s.bytes[Right][k / 4][4 * n + k % 4];
        }
        std::memcpy(&s.bytes[Sum][m][4 * n], &sum, 4);
      }
    }
  }
  // Subnormals count as zero, as in the instruction.
  static float value(const uint8_t* p) {
    const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return (bits & 0x7F800000u) == 0 ? 0.0f : x;
  }
  template <int Sum, int Left, int Right>
  static void dot_bf16() {
    State& s = state();
    for (int m = 0; m < s.config.rows[Sum]; ++m) {
      for (int n = 0; n < 16; ++n) {
        float sums[2] = {0.0f, 0.0f}, sum;
        for (int k = 0; k < s.config.colsb[Left] / 2; ++k) {
          const float product = value(&s.bytes[Left][m][2 * k]) *
                                value(&s.bytes[Right][k / 2][4 * n + 2 * (k % 2)]);
          sums[k % 2] += product;
        }
        std::memcpy(&sum, &s.bytes[Sum][m][4 * n], 4);
        sum += sums[0] + sums[1];
        std::memcpy(&s.bytes[Sum][m][4 * n], &sum, 4);
      }
    }
  }
};

}  // namespace
}  // namespace octavo
