// What an instruction set implements: a table of functions, chosen once at start.
// To add a set: a translation unit in kernels/ with its vector type, a table, and a line in
// select_isa and CMakeLists.txt.
#pragma once
#include <cstdint>

#include "kv.h"
#include "layout.h"

namespace octavo {

constexpr int64_t kScanRun = 64;  // values per partial result of a pass over a vocabulary
constexpr int64_t kSpan = 128;  // keys per attention span, at positions that are multiples

// What queries found in some keys: out = Σ e^(score − max) · value, sum = Σ e^(score − max), and
// top = max · log2(e).
struct Partial {
  float *out, *top, *sum;  // [queries][dim], [queries], [queries]
};

// Queries of one kv head against the keys [first, last) of one span, all in the same blocks.
// Query j sees the keys up to its position, at most `window` of them (0: all).
struct SpanCall {
  const uint8_t* pool;
  KvLayout kv;
  int64_t offset;  // bytes from a block's start to this layer's and head's keys
  const int32_t* table;
  int32_t window;
  float scale;
  int32_t queries;
  const float* const* q;     // [queries], each [dim]
  const int32_t* positions;  // [queries]
  int64_t first, last;
  // Keys of the span that comes next, to be fetched meanwhile; a group of 16 of it each, or null.
  const uint8_t* ahead[kSpan / 16];
  Partial out;     // written, not added to
  float* scratch;  // span_scratch() floats, of the running thread alone
};

struct Kernels {
  void (*strip)(int32_t layout, const StripCall& call);
  // One activation row to int8, into lane `row % 8` of its panel.
  void (*quantize)(const float* x, int64_t k, int64_t row, void* act);
  // n floats to bf16; null in a set that does not multiply bf16.
  void (*to_bf16)(const float* x, int64_t n, void* out);
  // out = x / sqrt(mean(x^2) + eps) * (weight + offset), over `width` values.
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, float offset,
                   float* out);
  // out = act(gate) * up; act 0: silu, 1: gelu_tanh.
  void (*act_mul)(const float* gate, const float* up, int64_t n, int32_t act, float* out);
  void (*attend_span)(const SpanCall& call);
  // into = into and from together; spans are joined in the order of their keys.
  void (*join_spans)(const Partial& into, const Partial& from, int64_t queries, int64_t dim);
  // Sampling, over whole vocabularies. scan: the largest of every kScanRun values; whether all are
  // finite. weigh: out[i] = exp((x[i] − top) · scale), and the sum of every kScanRun of them.
  // select: the ids, ascending, of values in [least, most]; returns how many. ids has room for
  // n + 16. cut: which of `bins` equal parts of values below `high` each is in, 1 / scale wide, the
  // last one without end. keep: weights of values below least to 0, and the sums as they are then.
  bool (*scan)(const float* x, int64_t n, float* tops);
  void (*weigh)(const float* x, int64_t n, float top, float scale, float* out, float* sums);
  int64_t (*select)(const float* x, int64_t n, float least, float most, int32_t* ids);
  void (*cut)(const float* x, int64_t n, float high, float scale, int32_t bins, int32_t* out);
  void (*keep)(const float* x, int64_t n, float least, float* weight, float* sums);
  // Multiplies int8 codes in registers `loops` times; returns how many products that were.
  int64_t (*burn)(int64_t loops);
  // For a set with a matrix unit, else null. leave: what a thread calls when it ends its part of a
  // step. tile_rows: a strip with as many rows, or more, goes to the unit.
  void (*leave)() = nullptr;
  int64_t& (*tile_rows)() = nullptr;
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAmxKernels;
extern const Kernels kAmxEmulatedKernels;  // in test programs only
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

// The selected set's table.
const Kernels& kernels();
// Replaces it; for tests.
void use_kernels(const Kernels& table);

// Floats of scratch for a span: queries as pairs, scores, and keys, values and scales gathered.
constexpr int64_t span_scratch(int64_t dim, int64_t queries) {
  return queries * (dim + kSpan) + kSpan * dim + 2 * kSpan;
}

}  // namespace octavo
