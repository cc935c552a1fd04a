// What an instruction set implements: a table of functions, chosen once at start.
// To add a set: a translation unit in kernels/ with its vector type, a table, and a line in
// select_isa and CMakeLists.txt.
#pragma once
#include <cstdint>

#include "layout.h"

namespace octavo {

// One attention work item: query rows of one sequence and one kv head against its cached keys.
//
//   keys [0, end) of the sequence lie in blocks table[p / block_size]; in a block, k and v of this
//   kv head start at k_offset and v_offset (bf16 elements). v is [entry][dim]; k is [dim][entry], so
//   that a vector of keys is one load.
//   Query j is token first + j / heads (of this call), head j % heads of the kv head's group; its
//   position is first_position + j / heads.
struct AttentionCall {
  const uint16_t* pool;
  int64_t block_elements, k_offset, v_offset;
  const int32_t* table;
  int32_t block_size, dim, heads;
  int32_t window;  // keys a token sees, itself included; 0: all
  float scale;
  const float* q;  // first token's first head of this group
  float* out;
  int64_t stride;  // floats from token to token in q and out
  int32_t tokens;
  int32_t first_position;
  float* scratch;  // attention_scratch() floats, of the running thread alone
};

constexpr int64_t kKeyTile = 64;       // keys per softmax tile, at positions that are multiples
constexpr int32_t kQueryTile = 16;     // tokens per work item

struct Kernels {
  void (*strip)(int32_t layout, const StripCall& call);
  // One activation row to int8, into lane `row % 8` of its panel.
  void (*quantize)(const float* x, int64_t k, int64_t row, void* act);
  // out = x / sqrt(mean(x^2) + eps) * (weight + offset), over `width` values.
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, float offset,
                   float* out);
  // out = act(gate) * up; act 0: silu, 1: gelu_tanh.
  void (*act_mul)(const float* gate, const float* up, int64_t n, int32_t act, float* out);
  void (*attention)(const AttentionCall& call);
  // out[i] = exp(x[i] - top); values far below give 0.
  void (*exp_all)(const float* x, int64_t n, float top, float* out);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// The selected set's table.
const Kernels& kernels();

// Floats of scratch that one thread needs for attention.
constexpr int64_t attention_scratch(int64_t dim, int64_t heads) {
  const int64_t queries = kQueryTile * heads;
  return 2 * kKeyTile * dim + queries * (kKeyTile + dim + 4) + 64;
}

}  // namespace octavo
