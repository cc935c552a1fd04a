// The C ABI that octavo/backends/native/library.py binds. No exception crosses it; a failure
// returns −1 or null and leaves its text in octavo_last_error().
#include <exception>
#include <string>

#include "ceiling.h"
#include "kernels.h"
#include "tape.h"

#define OCTAVO_API extern "C" __attribute__((visibility("default")))

namespace {

thread_local std::string last_error;

template <class F>
int guarded(F&& work) {
  try {
    work();
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return -1;
  }
}

}  // namespace

using octavo::Model;

// One row's parameters as they cross the ABI.
struct RowArguments {
  float temperature, top_p, min_p, repetition, presence, frequency;
  int32_t top_k, prompt_len, min_len, num_logprobs;
  uint64_t seed;
  int32_t stops, biases, alloweds, bad_tokens, bad_words, padding;
  const int32_t *stop_ids, *bias_ids, *allowed_ids, *bad_ids, *bad_ends;
  const float* bias;
};

OCTAVO_API int32_t octavo_abi_version() { return 3; }

OCTAVO_API const char* octavo_last_error() { return last_error.c_str(); }

OCTAVO_API int32_t octavo_detect_isa() { return static_cast<int32_t>(octavo::detect_isa()); }

OCTAVO_API int32_t octavo_isa_available(int32_t isa) {
  return isa >= 0 && isa < octavo::kIsas && octavo::isa_available(static_cast<octavo::Isa>(isa));
}

OCTAVO_API int32_t octavo_select_isa(int32_t isa) {
  if (!octavo_isa_available(isa)) return -1;
  octavo::select_isa(static_cast<octavo::Isa>(isa));
  return 0;
}

// Bytes of a packed weight, or −1 if the format cannot hold this width.
OCTAVO_API int64_t octavo_weight_bytes(int32_t format, int64_t n, int64_t k) {
  octavo::Weight w;
  if (octavo::plan_weight(static_cast<octavo::Format>(format), n, k, &w) != 0) return -1;
  return w.bytes;
}

// The form that a format's activations are brought to (octavo::Act); 0: they stay floats.
OCTAVO_API int32_t octavo_weight_act(int32_t format) {
  octavo::Weight w;
  octavo::plan_weight(static_cast<octavo::Format>(format), 16, 256, &w);
  return static_cast<int32_t>(octavo::weight_act(w));
}

OCTAVO_API int64_t octavo_act_bytes(int32_t act, int64_t rows, int64_t k) {
  return octavo::act_bytes(static_cast<octavo::Act>(act), rows, k);
}

OCTAVO_API Model* octavo_model_new(const octavo::Dims* dims) {
  Model* model = nullptr;
  guarded([&] { model = new Model(*dims); });
  return model;
}

// Bytes that the team's threads use between them while they work.
OCTAVO_API int64_t octavo_scratch_bytes(const Model* model) { return model->scratch_bytes(); }

OCTAVO_API void octavo_model_free(Model* model) { delete model; }

OCTAVO_API int32_t octavo_add_weight(Model* model, int32_t format, int64_t n, int64_t k,
                                     const uint8_t* source) {
  int index = -1;
  guarded([&] { index = model->add_weight(static_cast<octavo::Format>(format), n, k, source); });
  return index;
}

OCTAVO_API int32_t octavo_add_vector(Model* model, const float* values, int64_t n) {
  int index = -1;
  guarded([&] { index = model->add_vector(values, n); });
  return index;
}

// The packed weights: where they lie, how many bytes, and their checksum.
OCTAVO_API const uint8_t* octavo_weights_data(const Model* model) { return model->weights_data(); }

OCTAVO_API int64_t octavo_weights_bytes(const Model* model) { return model->weights_bytes(); }

OCTAVO_API uint64_t octavo_weights_checksum(Model* model) { return model->weights_checksum(); }

// Fills the weights' memory from an open file; the checksum of what was read goes to `sum`.
OCTAVO_API int32_t octavo_read_weights(Model* model, int32_t fd, int64_t offset, uint64_t* sum) {
  return guarded([&] { *sum = model->read_weights(fd, offset); });
}

OCTAVO_API int32_t octavo_set_tape(Model* model, int32_t which, const octavo::Record* records,
                                   int32_t count) {
  return guarded([&] { model->set_tape(which, records, count); });
}

OCTAVO_API int32_t octavo_set_row(Model* model, int32_t row, const RowArguments* a) {
  return guarded([&] {
    octavo::RowSampling& r = model->row(row);
    r.temperature = a->temperature;
    r.top_p = a->top_p;
    r.min_p = a->min_p;
    r.repetition = a->repetition;
    r.presence = a->presence;
    r.frequency = a->frequency;
    r.top_k = a->top_k;
    r.prompt_len = a->prompt_len;
    r.min_len = a->min_len;
    r.num_logprobs = a->num_logprobs;
    r.seed = a->seed;
    r.counts.clear();
    r.stop_ids.assign(a->stop_ids, a->stop_ids + a->stops);
    r.bias_ids.assign(a->bias_ids, a->bias_ids + a->biases);
    r.bias.assign(a->bias, a->bias + a->biases);
    r.bad_words.assign(a->bad_ids, a->bad_ids + a->bad_tokens);
    r.bad_word_ends.assign(a->bad_ends, a->bad_ends + a->bad_words);
    r.allowed.clear();
    if (a->alloweds >= 0) {
      r.allowed.resize(static_cast<size_t>(model->dims().vocab + 31) / 32);
      for (int32_t i = 0; i < a->alloweds; ++i) {
        const auto id = static_cast<uint32_t>(a->allowed_ids[i]);
        r.allowed[id / 32] |= 1u << id % 32;
      }
    }
  });
}

OCTAVO_API int32_t octavo_forward(Model* model, const octavo::Batch* batch) {
  return guarded([&] { model->forward(*batch); });
}

OCTAVO_API int32_t octavo_sample(Model* model, const octavo::Batch* batch) {
  return guarded([&] { model->sample(*batch); });
}

OCTAVO_API int32_t octavo_logits(Model* model, const octavo::Batch* batch, float* out) {
  return guarded([&] { model->logits(*batch, out); });
}

OCTAVO_API int32_t octavo_stages(const Model* model, int32_t which) {
  return model->stages(which);
}

// Seconds per stage since the last call; measuring begins with the first one.
OCTAVO_API void octavo_stage_times(Model* model, int32_t which, double* out) {
  model->stage_times(which, out);
}

// Best measured bytes per second, and int8 operations per second; 0 on failure.
OCTAVO_API double octavo_read_bandwidth(int32_t threads, int64_t bytes) {
  double rate = 0.0;
  guarded([&] { rate = octavo::read_bandwidth(threads, bytes); });
  return rate;
}

OCTAVO_API double octavo_matrix_rate(int32_t threads) {
  double rate = 0.0;
  guarded([&] { rate = octavo::matrix_rate(threads); });
  return rate;
}
