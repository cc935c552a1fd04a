// Which thread attends to what: one step's sequences as work items over spans of keys.
//
// An item is some tokens of a sequence and one kv head. A long item is cut in parts that threads
// claim by themselves; the one that ends last joins all spans in order, so the cut changes no bit.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "region.h"

namespace octavo {

struct AttentionShape {
  KvLayout kv;
  int32_t heads;  // query heads per kv head
  int32_t threads, most_rows, most_spans;
};

// The step's sequences: tokens [start[s], start[s + 1]) with their positions; a token's queries and
// outputs lie `stride` floats apart.
struct AttentionBatch {
  int32_t sequences;
  const int32_t *start, *positions;
};

// One layer's call. tables: of the layer's group, [row][most blocks].
struct AttentionLayer {
  const uint8_t* pool;
  const int32_t *tables, *rows;  // rows: each sequence's row in tables
  int64_t table_stride;
  int32_t layer, window;
  float scale;
  const float* q;
  float* out;
  int64_t stride;
};

class Attention {
 public:
  // Throws std::invalid_argument if a kv head has more query heads than there is room for.
  explicit Attention(const AttentionShape& shape);

  // Cuts a step in items; one thread, before any of the step's layers.
  void plan(const AttentionBatch& batch);
  // Claims and computes until nothing is left; every thread of the team. How many items it did.
  uint32_t run(const AttentionLayer& layer, std::atomic<int64_t>& claim, int thread);

  uint32_t items() const { return static_cast<uint32_t>(items_.size()); }
  int64_t scratch_bytes() const { return scratch_.bytes() + partials_.bytes(); }

 private:
  // Queries that share one pass over the keys: this many, or one token's if it has more.
  static constexpr int32_t kQueries = 48, kMostTokens = 16;
  static constexpr int32_t kMostHeads = 128;  // per kv head
  // How many parts a step should have per thread, so that all end at about the same time.
  static constexpr int32_t kPartsPerThread = 4;

  struct Item {
    int32_t sequence, kv_head, token, tokens;
    int32_t part, parts;
    int32_t join, slot;  // of a cut item: which counter, where its spans' partials begin
  };
  struct Work;

  int64_t partial_floats() const;
  Partial partial(float* at) const;
  float* scratch(int thread) const;
  int64_t first_key(const AttentionLayer& layer, const Item& item) const;
  void look_ahead(const AttentionLayer& layer, const Item& item, int64_t base, SpanCall* call) const;
  void compute(const AttentionLayer& layer, const Item& item, const Item* next, int thread);
  void finish(const Work& work, const Partial& total);

  AttentionShape shape_;
  int32_t tokens_per_item_, queries_;
  int64_t scratch_floats_;  // per thread
  int32_t slots_;
  Region scratch_, partials_;
  std::vector<Item> items_;
  std::unique_ptr<std::atomic<int32_t>[]> left_;  // parts still to come, by join
  AttentionBatch batch_{};
};

}  // namespace octavo
