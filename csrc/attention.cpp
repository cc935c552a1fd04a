#include "attention.h"

#include <algorithm>
#include <stdexcept>

namespace octavo {

// An item with its layer: where the spans lie and what the queries are.
struct Attention::Work {
  const float* q[kMostHeads];
  float* out[kMostHeads];
  int32_t positions[kMostHeads];
  int32_t queries;
  int64_t first, end;          // keys that any query sees
  int64_t first_span, spans;
};

Attention::Attention(const AttentionShape& shape)
    : shape_(shape),
      tokens_per_item_(std::clamp(kQueries / shape.heads, 1, kMostTokens)),
      queries_(tokens_per_item_ * shape.heads),
      scratch_floats_((span_scratch(shape.kv.dim, queries_) + 15) / 16 * 16 + 2 * partial_floats()),
      slots_(2 * kPartsPerThread * shape.threads * shape.kv.heads + 2 * shape.most_spans),
      scratch_(4 * scratch_floats_ * shape.threads),
      partials_(4 * partial_floats() * slots_),
      left_(new std::atomic<int32_t>[static_cast<size_t>(slots_)]) {
  if (shape.heads > kMostHeads) {
    throw std::invalid_argument("more than 128 query heads per kv head");
  }
}

int64_t Attention::partial_floats() const {
  return (int64_t{queries_} * (shape_.kv.dim + 2) + 15) / 16 * 16;
}

Partial Attention::partial(float* at) const {
  float* top = at + int64_t{queries_} * shape_.kv.dim;
  return {at, top, top + queries_};
}

float* Attention::scratch(int thread) const {
  return reinterpret_cast<float*>(scratch_.data()) + thread * scratch_floats_;
}

void Attention::plan(const AttentionBatch& batch) {
  batch_ = batch;
  items_.clear();
  const int32_t step = tokens_per_item_;
  int64_t total = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    for (int32_t t = batch.start[s]; t < batch.start[s + 1]; t += step) {
      const int32_t tokens = std::min(step, batch.start[s + 1] - t);
      total += shape_.kv.heads * (batch.positions[t + tokens - 1] / kSpan + 1);
    }
  }
  // A part may hold this many spans; longer items are cut while there is room for their partials.
  const int64_t most = std::max<int64_t>(1, total / (kPartsPerThread * shape_.threads));
  int32_t joins = 0, slots = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    for (int32_t t = batch.start[s]; t < batch.start[s + 1]; t += step) {
      const int32_t tokens = std::min(step, batch.start[s + 1] - t);
      const auto spans = static_cast<int32_t>(batch.positions[t + tokens - 1] / kSpan + 1);
      for (int32_t h = 0; h < shape_.kv.heads; ++h) {
        Item item = {s, h, t, tokens, 0, 1, -1, 0};
        if (spans > most && slots + spans <= slots_) {
          item.parts = static_cast<int32_t>((spans + most - 1) / most);
          item.join = joins;
          item.slot = slots;
          left_[static_cast<size_t>(joins)].store(item.parts, std::memory_order_relaxed);
          ++joins;
          slots += spans;
        }
        for (; item.part < item.parts; ++item.part) items_.push_back(item);
      }
    }
  }
  // What sees the most keys goes first.
  std::stable_sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) {
    return batch_.positions[a.token] / a.parts > batch_.positions[b.token] / b.parts;
  });
}

uint32_t Attention::run(const AttentionLayer& layer, std::atomic<int64_t>& claim, int thread) {
  const auto count = static_cast<int64_t>(items_.size());
  const auto claimed = [&]() -> const Item* {
    const int64_t i = claim.fetch_add(1, std::memory_order_relaxed);
    return i < count ? &items_[static_cast<size_t>(i)] : nullptr;
  };
  // One item is claimed ahead, so that its first keys are fetched while this one is computed.
  uint32_t done = 0;
  for (const Item *item = claimed(), *next; item; item = next) {
    next = claimed();
    compute(layer, *item, next, thread);
    ++done;
  }
  return done;
}

int64_t Attention::first_key(const AttentionLayer& layer, const Item& item) const {
  const int64_t position = batch_.positions[item.token];
  return layer.window ? std::max<int64_t>(0, position - layer.window + 1) : 0;
}

// The keys of `item` in the span at `base`, in groups, up to the item's last one.
void Attention::look_ahead(const AttentionLayer& layer, const Item& item, int64_t base,
                           SpanCall* call) const {
  const KvLayout& kv = shape_.kv;
  const int32_t* table = layer.tables + layer.rows[item.sequence] * layer.table_stride;
  const int64_t end = int64_t{batch_.positions[item.token + item.tokens - 1]} + 1;
  for (int64_t g = 0; g < kSpan / 16; ++g) {
    const int64_t key = base + 16 * g;
    call->ahead[g] = nullptr;
    if (kv.block_size < 16 || key < first_key(layer, item) / 16 * 16 || key >= end) continue;
    call->ahead[g] = layer.pool + table[key / kv.block_size] * kv.block_bytes() +
                     kv.offset(layer.layer, item.kv_head) +
                     (kv.type == KvType::bf16 ? 4 : kv.dim) * (key % kv.block_size);
  }
}

void Attention::compute(const AttentionLayer& layer, const Item& item, const Item* next, int thread) {
  const KvLayout& kv = shape_.kv;
  Work work;
  work.queries = item.tokens * shape_.heads;
  for (int32_t j = 0; j < work.queries; ++j) {
    const int64_t token = item.token + j / shape_.heads;
    const int64_t head = item.kv_head * shape_.heads + j % shape_.heads;
    work.q[j] = layer.q + token * layer.stride + head * kv.dim;
    work.out[j] = layer.out + token * layer.stride + head * kv.dim;
    work.positions[j] = batch_.positions[token];
  }
  work.end = int64_t{work.positions[work.queries - 1]} + 1;
  work.first = first_key(layer, item);
  work.first_span = work.first / kSpan;
  work.spans = (work.end + kSpan - 1) / kSpan - work.first_span;

  float* mine = scratch(thread);
  const Partial total = partial(mine), fresh = partial(mine + partial_floats());
  SpanCall call = {
      .pool = layer.pool,
      .kv = kv,
      .offset = kv.offset(layer.layer, item.kv_head),
      .table = layer.tables + layer.rows[item.sequence] * layer.table_stride,
      .window = layer.window,
      .scale = layer.scale,
      .queries = work.queries,
      .q = work.q,
      .positions = work.positions,
      .first = 0,
      .last = 0,
      .ahead = {},
      .out = fresh,
      .scratch = mine + 2 * partial_floats(),
  };
  const auto slot = [&](int64_t span) {
    return partial(reinterpret_cast<float*>(partials_.data()) + (item.slot + span) * partial_floats());
  };
  const Kernels& kernel = kernels();
  const int64_t begin = item.part * work.spans / item.parts;
  const int64_t end = (item.part + 1) * work.spans / item.parts;
  for (int64_t span = begin; span < end; ++span) {
    const int64_t base = (work.first_span + span) * kSpan;
    call.first = std::max(work.first, base);
    call.last = std::min(work.end, base + kSpan);
    call.out = item.join >= 0 ? slot(span) : span == begin ? total : fresh;
    if (span + 1 < end) {
      look_ahead(layer, item, base + kSpan, &call);
    } else if (next) {
      look_ahead(layer, *next, first_key(layer, *next) / kSpan * kSpan, &call);
    }
    kernel.attend_span(call);
    if (item.join < 0 && span > begin) kernel.join_spans(total, fresh, work.queries, kv.dim);
  }
  Partial whole = total;
  if (item.join >= 0) {
    auto& left = left_[static_cast<size_t>(item.join)];
    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    left.store(item.parts, std::memory_order_relaxed);  // for the next layer
    whole = slot(0);
    for (int64_t span = 1; span < work.spans; ++span) {
      kernel.join_spans(whole, slot(span), work.queries, kv.dim);
    }
  }
  finish(work, whole);
}

void Attention::finish(const Work& work, const Partial& total) {
  const int64_t dim = shape_.kv.dim;
  for (int32_t j = 0; j < work.queries; ++j) {
    const float inverse = 1.0f / total.sum[j];
    for (int64_t d = 0; d < dim; ++d) work.out[j][d] = total.out[j * dim + d] * inverse;
  }
}

}  // namespace octavo
