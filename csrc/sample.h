// Drawing tokens from logits. The order of processing is documented in
// octavo/base/sampling_params.py and is the same on every backend.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace octavo {

constexpr int kMostLogprobs = 20;

// The tokens of a row's history, counted as it grows.
class TokenCounts {
 public:
  struct Entry {
    int32_t id, times;  // times: in the output, not the prompt
  };

  // Brings the counts up to history[0, length). A history that is not a continuation of the last one
  // is counted anew.
  void follow(const int32_t* history, int32_t length, int32_t prompt_len);
  void clear();
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  int32_t known_ = 0, last_ = -1;
  std::unordered_map<int32_t, std::size_t> index_;
  std::vector<Entry> entries_;
};

// One row's parameters; owned by the model, filled when a request takes the row.
struct RowSampling {
  float temperature = 0, top_p = 1, min_p = 0;
  float repetition = 1, presence = 0, frequency = 0;
  int32_t top_k = 0, prompt_len = 0, min_len = 0, num_logprobs = -1;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids, bias_ids;
  std::vector<float> bias;
  std::vector<uint32_t> allowed;      // a bit per token; empty: all are allowed
  std::vector<int32_t> bad_words;     // sequences one after the other
  std::vector<int32_t> bad_word_ends; // where each ends
  TokenCounts counts;                 // for the penalties

  bool changes_logits() const {
    return repetition != 1.0f || presence != 0.0f || frequency != 0.0f || !allowed.empty() ||
           !bad_word_ends.empty() || !bias_ids.empty() || min_len > prompt_len;
  }
};

// What came out. token −1: the logits are not finite, or nothing survived the masks.
struct Drawn {
  int32_t token, rank, tops, padding;
  float logprob;
  int32_t top_id[kMostLogprobs];
  float top[kMostLogprobs];
};

// Bytes of scratch that one thread needs.
int64_t sample_scratch_bytes(int64_t vocab);

// Draws from `logits` [vocab], which it may overwrite. history: the row's tokens [0, length); the
// drawn token's position is `length`.
void sample_row(RowSampling& params, float* logits, int64_t vocab, const int32_t* history,
                int32_t length, void* scratch, Drawn* out);

}  // namespace octavo
