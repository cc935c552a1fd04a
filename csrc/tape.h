// The tape: a lowered program as flat records over fixed addresses, replayed once per call.
//
// Records are grouped in stages; a stage begins when everything in the one before is done. A stage is
//   rows       one or more row-wise records: a thread claims some rows and runs all of them on each
//   linear     one activation against up to four weights: a thread claims tiles
//   attention  a thread claims items, see csrc/attention.h
//   sample     a thread claims rows and draws their tokens
// Nothing in a record depends on the number of tokens, so one tape serves every step.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "kv.h"
#include "linear.h"
#include "packed.h"
#include "region.h"
#include "sample.h"
#include "team.h"

namespace octavo {

enum class Kind : int32_t {
  embed = 0,       // out; weight; scale
  rms_norm = 1,    // out, x; vector; width of a group, groups, row width; eps, offset
  quantize = 2,    // act; x; width, form of act
  linear = 3,      // see Record
  rope_table = 4,  // out [dim]: cos and sin of the row's position; vector (inv_freq); dim / 2
  rope = 5,        // x, table; heads, head_dim, dim / 2, interleaved
  kv_store = 6,    // k, v; group, layer
  attention = 7,   // out, q; group, layer, heads, window; scale
  act_mul = 8,     // out, gate, up; width, act
  add = 9,         // out, a, b; width
  gather = 10,     // x
  load = 11,       // out
  sample = 12,     // logits
};

// Mirrored by octavo/backends/native/lower.py; change both and the ABI version together.
struct Record {
  int32_t kind;
  int32_t new_stage;   // 1: a stage begins with this record
  int32_t weight[4];   // linear: weights (−1: none); others: weight[0]
  int32_t vector[4];   // linear: biases (−1: none); others: vector[0]
  int32_t n[8];        // the kind's whole numbers; linear: k, form of act (0: none), accumulate
  float f[2];
  int64_t at[8];       // arena offsets in bytes; linear: x, act, outs
};

struct Dims {
  int32_t threads, max_rows, max_blocks, groups, num_blocks;
  int32_t block_size, kv_heads, head_dim, layers_per_group;
  int32_t tile, sample_rows, hidden, vocab, heads, kv_type;
  int32_t padding;
  int64_t arena_bytes, weight_bytes;
};

// One call's inputs; see octavo/backends/api.py.
struct Batch {
  int32_t rows;  // tokens, or sampling rows
  int32_t sequences, gathers;
  const int32_t *tokens, *positions, *seq_start, *seq_row, *seq_len, *tables;
  const int32_t *gather_token, *gather_row;
  const int32_t* sample_row;
  const int32_t* row_tokens;  // [max_rows, row_stride]
  const int32_t* row_lens;
  int64_t row_stride;
  Drawn* drawn;
};

class Model {
 public:
  explicit Model(const Dims& dims);

  // All weights and vectors lie one after the other in the order they are added; together they are
  // `weights_bytes` at `weights_data`, the same for the same model on any machine. A null source
  // takes the place without filling it: for weights that read_weights has brought.
  const uint8_t* weights_data() const { return weights_region_.data(); }
  int64_t weights_bytes() const { return dims_.weight_bytes; }
  uint64_t weights_checksum() { return checksum(team_, weights_data(), weights_bytes()); }
  uint64_t read_weights(int fd, int64_t offset) {
    return read_packed(team_, fd, offset, weights_region_.data(), weights_bytes());
  }

  // Both return the index that records use. The source may be dropped afterwards.
  int add_weight(Format format, int64_t n, int64_t k, const uint8_t* source);
  int add_vector(const float* values, int64_t n);
  void set_tape(int which, const Record* records, int count);

  void forward(const Batch& batch) { replay(0, batch); }
  void sample(const Batch& batch) { replay(1, batch); }
  // Raw logits of the rows' stored hidden states: `sample` without drawing.
  void logits(const Batch& batch, float* out);

  // Seconds that the caller's thread spent in each of a tape's stages, waiting for the team included,
  // since the last call; measuring begins with the first call. `out` holds stages(which) values.
  void stage_times(int which, double* out);
  int32_t stages(int which) const { return static_cast<int32_t>(tapes_[which].stages.size()); }

  RowSampling& row(int32_t r) { return rows_[static_cast<size_t>(r)]; }
  const Dims& dims() const { return dims_; }
  int64_t scratch_bytes() const { return scratch_.bytes() + attention_.scratch_bytes(); }

 private:
  struct Part {
    int first, last;  // records [first, last)
  };
  struct Tape {
    std::vector<Record> records;
    std::vector<Part> stages;
    std::unique_ptr<Stage[]> progress;  // of each stage in this replay
    std::vector<double> seconds;  // by stage; empty: not measured
  };
  struct Replay {
    Model* model;
    Tape* tape;
  };

  void replay(int which, const Batch& batch);
  void work(Tape& tape, int thread);
  void run_stage(Tape& tape, size_t stage, int thread);
  void run_rows(const Tape& tape, Part part, Stage& stage);
  void run_row(const Record& r, int32_t row);
  void run_linear(const Record& r, Stage& stage);
  void run_attention(const Record& r, Stage& stage, int thread);
  void run_sample(const Record& r, Stage& stage, int thread);
  void kv_store(const Record& r, int32_t row);
  // The block tables of a group, [row][most blocks].
  const int32_t* tables(int32_t group) const {
    return batch_.tables + int64_t{group} * dims_.max_rows * dims_.max_blocks;
  }

  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(arena_.data() + offset);
  }
  float* floats(int64_t offset, int32_t row, int64_t width) const {
    return at<float>(offset) + row * width;
  }
  uint8_t* take(int64_t bytes);

  Dims dims_;
  KvLayout kv_;
  int64_t scratch_bytes_;  // of sampling, per thread
  Region arena_, weights_region_, pool_, hidden_, scratch_;
  int64_t used_ = 0;
  std::vector<Weight> weights_;
  std::vector<const float*> vectors_;
  std::vector<RowSampling> rows_;
  std::vector<int32_t> token_sequence_;
  Attention attention_;
  Tape tapes_[2];
  Batch batch_{};
  Team team_;              // last: its threads use everything above
};

}  // namespace octavo
