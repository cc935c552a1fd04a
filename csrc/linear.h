// Linear layers over weights that stay quantised: packing, activation quantising, tiles.
//
// Contract. For one instruction set every kernel of a format computes each output element by the
// same sequence of operations, whatever the number of rows and however tiles are split:
//   quantised formats: the activation row is split in blocks of 32 and each block quantised to
//     int8 (scale = amax/127, round to nearest even); per block the int32 dot products are exact;
//     float additions happen in block order.
//   f32, f16: weights widen exactly to float, float activations, one fixed order of sums.
//   bf16: in pairs along k; activations round to bf16 where the set multiplies such pairs, else they
//     stay float and the weights widen; one fixed order of sums.
// So a row's result does not depend on the batch it is in.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

// Source formats, as they lie in a checkpoint (values are our own, shared with Python).
enum class Format : int32_t {
  f32 = 0, f16 = 1, bf16 = 2,
  q4_0 = 3, q4_1 = 4, q5_0 = 5, q5_1 = 6, q8_0 = 7,
  q4_k = 8, q5_k = 9, q6_k = 10,
};

enum class Isa : int32_t { portable = 0, avx2 = 1, avx512 = 2, avx512_bf16 = 3, amx = 4, neon = 5 };
constexpr const char* kIsaNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx", "neon"};
constexpr int32_t kIsas = 6;

// Best set this CPU and operating system can run (CPUID + XGETBV). avx512 means F+BW+DQ+VL+VNNI;
// an x86 CPU that has a set has those before it. neon means with the dot product extension.
Isa detect_isa();
// Whether this CPU can run a set.
bool isa_available(Isa isa);
// Selects the kernels; called once before packing (layouts may differ between sets).
void select_isa(Isa isa);
Isa selected_isa();

// A weight [n, k] packed for the selected set. `data` is owned by the caller (64-byte aligned).
struct Weight {
  Format format;
  int32_t layout;  // chosen by plan_weight; kernels dispatch on it
  int64_t n, k;
  int64_t bytes;   // size of `data`
  uint8_t* data;
};

// Fills format, layout, n, k, bytes. Returns 0, or -1 if the format cannot hold this k.
int plan_weight(Format format, int64_t n, int64_t k, Weight* w);
// Number of row strips, the unit that packing and tiles are split in (strips are independent).
int64_t weight_strips(const Weight& w);
// Packs strips [s0, s1) from `src` (the whole tensor's raw checkpoint bytes).
void pack_weight(Weight& w, const uint8_t* src, int64_t s0, int64_t s1);
// Dequantises row `row` exactly (the value a float32 dequantisation of the checkpoint gives).
void weight_row(const Weight& w, int64_t row, float* out);

// Activations in the form a weight's kernel reads. Rows are independent.
enum class Act : int32_t { f32 = 0, q8 = 1, bf16 = 2 };
Act weight_act(const Weight& w);
// Bytes of `rows` prepared activation rows of width k (0 for Act::f32: the floats are read as
// they are). The buffer must be 64-byte aligned.
int64_t act_bytes(Act act, int64_t rows, int64_t k);
// Prepares rows [r0, r1) of x (row stride ldx floats) in `dst`.
void prepare_act(Act act, const float* x, int64_t ldx, int64_t k, int64_t r0, int64_t r1, void* dst);

// One linear over `rows` prepared rows, split in tiles that any thread may run in any order.
struct LinearCall {
  const Weight* w;
  const void* act;     // prepared for weight_act(*w); for Act::f32 the float rows themselves, w->k apart
  int64_t rows;
  float* out;          // row stride ldo floats
  int64_t ldo;
  const float* bias;   // [n] or null
  bool accumulate;     // out += result (residual) instead of out = result
};
int64_t linear_tiles(const LinearCall& c);
void linear_tile(const LinearCall& c, int64_t tile);

}  // namespace octavo
