#include "tape.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace octavo {
namespace {

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows a thread claims at once: few, so that nobody waits, but not one by one.
int64_t rows_per_claim(int64_t rows, int threads) {
  return std::clamp<int64_t>(rows / (4 * threads), 1, 16);
}

void rotate(float* x, const float* table, int32_t half, bool interleaved) {
  const float* cosine = table;
  const float* sine = table + half;
  for (int32_t i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float p = a * cosine[i] - b * sine[i];
    b = a * sine[i] + b * cosine[i];
    a = p;
  }
}

}  // namespace

Model::Model(const Dims& dims)
    : dims_(dims),
      kv_{static_cast<KvType>(dims.kv_type), dims.block_size, dims.kv_heads, dims.head_dim,
          dims.layers_per_group},
      scratch_bytes_(align(sample_scratch_bytes(dims.vocab))),
      arena_(dims.arena_bytes),
      weights_region_(dims.weight_bytes),
      pool_(dims.num_blocks * kv_.block_bytes()),
      hidden_(int64_t{dims.max_rows} * dims.hidden * 4),
      scratch_(scratch_bytes_ * dims.threads),
      rows_(static_cast<size_t>(dims.max_rows)),
      token_sequence_(static_cast<size_t>(dims.tile)),
      attention_({kv_, dims.heads / dims.kv_heads, dims.threads, dims.max_rows,
                  static_cast<int32_t>((int64_t{dims.max_blocks} * dims.block_size + kSpan - 1) /
                                       kSpan)}),
      team_(dims.threads) {}

uint8_t* Model::take(int64_t bytes) {
  if (used_ + align(bytes) > weights_region_.bytes()) return nullptr;
  uint8_t* p = weights_region_.data() + used_;
  used_ += align(bytes);
  return p;
}

int Model::add_weight(Format format, int64_t n, int64_t k, const uint8_t* source) {
  Weight w;
  if (plan_weight(format, n, k, &w) != 0) return -1;
  w.data = take(w.bytes);
  if (!w.data) return -1;
  weights_.push_back(w);
  const int index = static_cast<int>(weights_.size()) - 1;
  if (!source) return index;
  struct Pack {
    Weight* w;
    const uint8_t* source;
    std::atomic<int64_t> next{0};
  } pack{&w, source};
  team_.run(
      [](void* context, int) {
        auto& p = *static_cast<Pack*>(context);
        const int64_t strips = weight_strips(*p.w);
        constexpr int64_t some = 4;
        for (int64_t s; (s = p.next.fetch_add(some)) < strips;) {
          pack_weight(*p.w, p.source, s, std::min(s + some, strips));
        }
      },
      &pack);
  return index;
}

int Model::add_vector(const float* values, int64_t n) {
  uint8_t* p = take(n * 4);
  if (!p) return -1;
  if (values) std::memcpy(p, values, static_cast<size_t>(n) * 4);
  vectors_.push_back(reinterpret_cast<const float*>(p));
  return static_cast<int>(vectors_.size()) - 1;
}

void Model::set_tape(int which, const Record* records, int count) {
  Tape& tape = tapes_[which];
  tape.records.assign(records, records + count);
  tape.stages.clear();
  for (int i = 0; i < count; ++i) {
    if (i == 0 || records[i].new_stage) tape.stages.push_back({i, i});
    tape.stages.back().last = i + 1;
  }
  tape.progress = std::make_unique<Stage[]>(tape.stages.size());
}

void Model::replay(int which, const Batch& batch) {
  batch_ = batch;
  Tape& tape = tapes_[which];
  for (size_t i = 0; i < tape.stages.size(); ++i) tape.progress[i].reset();
  if (which == 0) {
    for (int32_t i = 0; i < batch_.sequences; ++i) {
      std::fill(&token_sequence_[static_cast<size_t>(batch_.seq_start[i])],
                token_sequence_.data() + batch_.seq_start[i + 1], i);
    }
    attention_.plan({batch_.sequences, batch_.seq_start, batch_.positions});
  }
  Replay context{this, &tape};
  team_.run(
      [](void* c, int thread) {
        auto& r = *static_cast<Replay*>(c);
        r.model->work(*r.tape, thread);
        if (kernels().leave) kernels().leave();
      },
      &context);
}

void Model::work(Tape& tape, int thread) {
  using Clock = std::chrono::steady_clock;
  const bool timed = thread == 0 && !tape.seconds.empty();
  auto before = timed ? Clock::now() : Clock::time_point();
  for (size_t stage = 0; stage < tape.stages.size(); ++stage) {
    run_stage(tape, stage, thread);
    if (timed) {
      const auto now = Clock::now();
      tape.seconds[stage] += std::chrono::duration<double>(now - before).count();
      before = now;
    }
  }
}

void Model::stage_times(int which, double* out) {
  Tape& tape = tapes_[which];
  if (tape.seconds.empty()) tape.seconds.resize(tape.stages.size());
  std::copy(tape.seconds.begin(), tape.seconds.end(), out);
  std::fill(tape.seconds.begin(), tape.seconds.end(), 0.0);
}

void Model::run_stage(Tape& tape, size_t stage, int thread) {
  const Part part = tape.stages[stage];
  const Record& first = tape.records[static_cast<size_t>(part.first)];
  Stage& progress = tape.progress[stage];
  switch (static_cast<Kind>(first.kind)) {
    case Kind::linear: return run_linear(first, progress);
    case Kind::attention: return run_attention(first, progress, thread);
    case Kind::sample: return run_sample(first, progress, thread);
    default: return run_rows(tape, part, progress);
  }
}

void Model::run_rows(const Tape& tape, Part part, Stage& stage) {
  const auto kind = static_cast<Kind>(tape.records[static_cast<size_t>(part.first)].kind);
  const int64_t rows = kind == Kind::gather ? batch_.gathers : batch_.rows;
  const int64_t some = rows_per_claim(rows, team_.size());
  uint32_t mine = 0;
  for (int64_t begin; (begin = stage.claim.fetch_add(some)) < rows;) {
    const int64_t end = std::min(begin + some, rows);
    for (int64_t row = begin; row < end; ++row) {
      for (int i = part.first; i < part.last; ++i) {
        run_row(tape.records[static_cast<size_t>(i)], static_cast<int32_t>(row));
      }
    }
    mine += static_cast<uint32_t>(end - begin);
  }
  stage.finish(mine, static_cast<uint32_t>(rows));
}

void Model::run_row(const Record& r, int32_t row) {
  const int32_t* n = r.n;
  switch (static_cast<Kind>(r.kind)) {
    case Kind::embed: {
      const Weight& w = weights_[static_cast<size_t>(r.weight[0])];
      float* out = floats(r.at[0], row, w.k);
      weight_row(w, batch_.tokens[row], out);
      for (int64_t i = 0; i < w.k; ++i) out[i] *= r.f[0];
      return;
    }
    case Kind::rms_norm: {
      const int64_t width = n[0], stride = n[2];
      float* out = floats(r.at[0], row, stride);
      const float* x = floats(r.at[1], row, stride);
      for (int32_t g = 0; g < n[1]; ++g) {
        kernels().rms_norm(x + g * width, vectors_[static_cast<size_t>(r.vector[0])], width, r.f[0],
                           r.f[1], out + g * width);
      }
      return;
    }
    case Kind::quantize:
      prepare_act(static_cast<Act>(n[1]), at<float>(r.at[1]), n[0], n[0], row, row + 1,
                  at<uint8_t>(r.at[0]));
      return;
    case Kind::rope_table: {
      float* out = floats(r.at[0], row, 2 * n[0]);
      const float* pair = vectors_[static_cast<size_t>(r.vector[0])];
      for (int32_t i = 0; i < n[0]; ++i) {
        // A frequency comes as two floats, high and low part, to keep it accurate over the context.
        const double frequency = double{pair[2 * i]} + double{pair[2 * i + 1]};
        const double angle = batch_.positions[row] * frequency;
        out[i] = static_cast<float>(std::cos(angle));
        out[n[0] + i] = static_cast<float>(std::sin(angle));
      }
      return;
    }
    case Kind::rope: {
      float* x = floats(r.at[0], row, int64_t{n[0]} * n[1]);
      const float* table = floats(r.at[1], row, 2 * n[2]);
      for (int32_t h = 0; h < n[0]; ++h) rotate(x + h * n[1], table, n[2], n[3] != 0);
      return;
    }
    case Kind::kv_store: return kv_store(r, row);
    case Kind::act_mul:
      kernels().act_mul(floats(r.at[1], row, n[0]), floats(r.at[2], row, n[0]), n[0], n[1],
                        floats(r.at[0], row, n[0]));
      return;
    case Kind::add: {
      float* out = floats(r.at[0], row, n[0]);
      const float* a = floats(r.at[1], row, n[0]);
      const float* b = floats(r.at[2], row, n[0]);
      for (int32_t i = 0; i < n[0]; ++i) out[i] = a[i] + b[i];
      return;
    }
    case Kind::gather:
      std::memcpy(reinterpret_cast<float*>(hidden_.data()) +
                      int64_t{batch_.gather_row[row]} * dims_.hidden,
                  floats(r.at[0], batch_.gather_token[row], dims_.hidden),
                  static_cast<size_t>(dims_.hidden) * 4);
      return;
    case Kind::load:
      std::memcpy(floats(r.at[0], row, dims_.hidden),
                  reinterpret_cast<float*>(hidden_.data()) +
                      int64_t{batch_.sample_row[row]} * dims_.hidden,
                  static_cast<size_t>(dims_.hidden) * 4);
      return;
    default: return;
  }
}

void Model::kv_store(const Record& r, int32_t row) {
  const int32_t sequence = token_sequence_[static_cast<size_t>(row)];
  const int32_t position = batch_.positions[row];
  const int32_t* table = tables(r.n[0]) + int64_t{batch_.seq_row[sequence]} * dims_.max_blocks;
  uint8_t* block = pool_.data() + table[position / dims_.block_size] * kv_.block_bytes();
  const int64_t dim = dims_.head_dim, width = dims_.kv_heads * dim;
  const float* k = floats(r.at[0], row, width);
  const float* v = floats(r.at[1], row, width);
  const bool last = row + 1 == batch_.seq_start[sequence + 1];
  for (int32_t h = 0; h < dims_.kv_heads; ++h) {
    octavo::kv_store(kv_, block + kv_.offset(r.n[1], h), position % dims_.block_size, k + h * dim,
                     v + h * dim, last);
  }
}

void Model::run_linear(const Record& r, Stage& stage) {
  LinearCall calls[4];
  int64_t ends[4];
  int count = 0;
  int64_t total = 0;
  for (int i = 0; i < 4 && r.weight[i] >= 0; ++i, ++count) {
    const Weight& w = weights_[static_cast<size_t>(r.weight[i])];
    calls[i] = {
        .w = &w,
        .act = r.n[1] ? at<void>(r.at[1]) : at<void>(r.at[0]),
        .rows = batch_.rows,
        .out = at<float>(r.at[2 + i]),
        .ldo = w.n,
        .bias = r.vector[i] >= 0 ? vectors_[static_cast<size_t>(r.vector[i])] : nullptr,
        .accumulate = r.n[2] != 0,
    };
    total += linear_tiles(calls[i]);
    ends[i] = total;
  }
  uint32_t mine = 0;
  for (int64_t tile; (tile = stage.claim.fetch_add(1, std::memory_order_relaxed)) < total; ++mine) {
    int i = 0;
    while (tile >= ends[i]) ++i;
    linear_tile(calls[i], tile - (i ? ends[i - 1] : 0));
  }
  stage.finish(mine, static_cast<uint32_t>(total));
}

void Model::run_attention(const Record& r, Stage& stage, int thread) {
  const AttentionLayer layer = {
      .pool = pool_.data(),
      .tables = tables(r.n[0]),
      .rows = batch_.seq_row,
      .table_stride = dims_.max_blocks,
      .layer = r.n[1],
      .window = r.n[3],
      .scale = r.f[0],
      .q = at<float>(r.at[1]),
      .out = at<float>(r.at[0]),
      .stride = int64_t{r.n[2]} * dims_.head_dim,
  };
  stage.finish(attention_.run(layer, stage.claim, thread), attention_.items());
}

void Model::run_sample(const Record& r, Stage& stage, int thread) {
  if (!batch_.drawn) return;
  uint32_t mine = 0;
  for (int64_t i; (i = stage.claim.fetch_add(1)) < batch_.rows; ++mine) {
    const int32_t row = batch_.sample_row[i];
    sample_row(rows_[static_cast<size_t>(row)],
               floats(r.at[0], static_cast<int32_t>(i), dims_.vocab), dims_.vocab,
               batch_.row_tokens + row * batch_.row_stride, batch_.row_lens[row],
               scratch_.data() + thread * scratch_bytes_, batch_.drawn + i);
  }
  stage.finish(mine, static_cast<uint32_t>(batch_.rows));
}

void Model::logits(const Batch& batch, float* out) {
  Batch quiet = batch;
  quiet.drawn = nullptr;
  replay(1, quiet);
  const Record& last = tapes_[1].records.back();
  std::memcpy(out, at<float>(last.at[0]), static_cast<size_t>(batch.rows) * dims_.vocab * 4);
}

}  // namespace octavo
