// How keys and values lie in the pool, and how a token's are written there.
//
// The pool is block-major: [block][layer][k, v][kv head]. One head's part of a block holds
// `block_size` entries as codes in pairs, so that one instruction multiplies two neighbours:
//
//   k: [dim / 2][entry][2]       a vector of 16 lanes: 16 keys × 2 dimensions
//   v: [entry / 2][dim][2]       a vector of 16 lanes: 16 dimensions × 2 entries
//
// bf16: codes are values. int8: value = code · scale of its token and head; the scales, f32 [entry],
// lie behind the codes.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {

enum class KvType : int32_t { bf16 = 0, int8 = 1 };

// Round to nearest even; a NaN stays a NaN.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

struct KvLayout {
  KvType type;
  int32_t block_size, heads, dim, layers;  // layers: per block, of one group

  int64_t codes() const { return int64_t{block_size} * dim; }
  int64_t head_bytes() const {
    return type == KvType::bf16 ? 2 * codes() : codes() + 4 * int64_t{block_size};
  }
  int64_t side_bytes() const { return heads * head_bytes(); }
  int64_t block_bytes() const { return 2 * side_bytes() * layers; }
  // From a block's start to the keys of (layer, head); the values lie side_bytes() behind.
  int64_t offset(int32_t layer, int32_t head) const {
    return 2 * layer * side_bytes() + head * head_bytes();
  }
};

namespace kv {

inline void store_bf16(const KvLayout& l, uint8_t* keys, uint8_t* values, int64_t entry,
                       const float* k, const float* v, bool last) {
  auto* to_k = reinterpret_cast<uint16_t*>(keys) + 2 * entry;
  auto* to_v = reinterpret_cast<uint16_t*>(values) + (entry / 2) * 2 * l.dim + entry % 2;
  for (int64_t d = 0; d < l.dim; d += 2) {
    const uint16_t pair[2] = {to_bf16(k[d]), to_bf16(k[d + 1])};
    std::memcpy(to_k + d * l.block_size, pair, 4);
  }
  for (int64_t d = 0; d < l.dim; ++d) to_v[2 * d] = to_bf16(v[d]);
  if (last && entry % 2 == 0) {
    for (int64_t d = 0; d < l.dim; ++d) to_v[2 * d + 1] = 0;
  }
}

// amax / 127 as the scale, so that 0 stays 0; NaN if a value is not finite.
inline float int8_scale(const float* x, int64_t n) {
  float top = 0.0f, strange = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    top = std::max(top, std::fabs(x[i]));
    strange += x[i] - x[i];  // 0, or NaN
  }
  return top / 127.0f + strange;
}

inline void store_int8(const KvLayout& l, uint8_t* keys, uint8_t* values, int64_t entry,
                       const float* k, const float* v, bool last) {
  const float scales[2] = {int8_scale(k, l.dim), int8_scale(v, l.dim)};
  float inverse[2];
  for (int i = 0; i < 2; ++i) inverse[i] = scales[i] > 1e-30f ? 1.0f / scales[i] : 0.0f;
  auto* to_k = reinterpret_cast<int8_t*>(keys) + 2 * entry;
  auto* to_v = reinterpret_cast<int8_t*>(values) + (entry / 2) * 2 * l.dim + entry % 2;
  for (int64_t d = 0; d < l.dim; ++d) {
    to_k[d / 2 * 2 * l.block_size + d % 2] = static_cast<int8_t>(std::lrintf(k[d] * inverse[0]));
    to_v[2 * d] = static_cast<int8_t>(std::lrintf(v[d] * inverse[1]));
  }
  std::memcpy(keys + l.codes() + 4 * entry, &scales[0], 4);
  std::memcpy(values + l.codes() + 4 * entry, &scales[1], 4);
  if (last && entry % 2 == 0) {
    for (int64_t d = 0; d < l.dim; ++d) to_v[2 * d + 1] = 0;
    std::memset(values + l.codes() + 4 * (entry + 1), 0, 4);
  }
}

}  // namespace kv

// Writes one token's key and value of one head. `keys`: the head's keys in the token's block. `last`:
// no later token of the sequence is stored in this step; then the entry that shares a pair of values
// with this one is cleared, so that what an earlier owner left there (a NaN, perhaps) weighs nothing.
inline void kv_store(const KvLayout& l, uint8_t* keys, int64_t entry, const float* k, const float* v,
                     bool last) {
  uint8_t* values = keys + l.side_bytes();
  if (l.type == KvType::bf16) return kv::store_bf16(l, keys, values, entry, k, v, last);
  kv::store_int8(l, keys, values, entry, k, v, last);
}

}  // namespace octavo
