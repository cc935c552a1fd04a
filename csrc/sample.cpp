#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels.h"

namespace octavo {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Scratch {
  float* weight;    // [vocab] exp(logit − top)
  float* raw;       // [vocab] the logits before processing, for log-probabilities
  int32_t* count;   // [vocab] zero between calls
};

Scratch split(void* scratch, int64_t vocab) {
  auto* floats = static_cast<float*>(scratch);
  return {floats, floats + vocab, reinterpret_cast<int32_t*>(floats + 2 * vocab)};
}

bool all_finite(const float* x, int64_t n) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= std::fabs(x[i]) <= std::numeric_limits<float>::max();
  return finite;
}

// The largest value; of equal ones the lowest id. −1 if everything is −∞.
int32_t arg_max(const float* x, int64_t n) {
  float top = kNone;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, x[i]);
  if (top == kNone) return -1;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == top) return static_cast<int32_t>(i);
  }
  return -1;
}

void mask(const RowSampling& p, float* logits, int64_t vocab, const int32_t* history,
          int32_t length) {
  if (!p.allowed.empty()) {
    for (int64_t i = 0; i < vocab; ++i) {
      if (!(p.allowed[static_cast<size_t>(i / 32)] >> (i % 32) & 1u)) logits[i] = kNone;
    }
  }
  int32_t begin = 0;
  for (const int32_t end : p.bad_word_ends) {
    const int32_t* word = p.bad_words.data() + begin;
    const int32_t before = end - begin - 1;
    if (before <= length && std::equal(word, word + before, history + length - before)) {
      logits[word[before]] = kNone;
    }
    begin = end;
  }
  if (length < p.min_len) {
    for (const int32_t id : p.stop_ids) logits[id] = kNone;
  }
  for (size_t i = 0; i < p.bias_ids.size(); ++i) logits[p.bias_ids[i]] += p.bias[i];
}

void penalise(const RowSampling& p, float* logits, const int32_t* history, int32_t length,
              int32_t* count) {
  if (p.repetition == 1.0f && p.presence == 0.0f && p.frequency == 0.0f) return;
  constexpr int32_t seen = 1 << 30;
  for (int32_t i = 0; i < length; ++i) {
    const int32_t id = history[i];
    if (!(count[id] & seen)) {
      float& x = logits[id];
      x = x > 0.0f ? x / p.repetition : x * p.repetition;
      count[id] |= seen;
    }
    if (i >= p.prompt_len) ++count[id];
  }
  for (int32_t i = p.prompt_len; i < length; ++i) {
    const int32_t id = history[i], times = count[id] & ~seen;
    if (times == 0) continue;  // done at its first occurrence
    logits[id] -= p.frequency * static_cast<float>(times);
    logits[id] -= p.presence;
    count[id] = seen;
  }
  for (int32_t i = 0; i < length; ++i) count[history[i]] = 0;
}

// Floats as unsigned numbers of the same order.
uint32_t ordered(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The key of the value at which the running mass, from the largest value down, first reaches
// `target`: a radix descent over 11, 11 and 10 bits, so nothing is sorted. Equal values count as
// one. weight null: each value weighs 1.
uint32_t mass_threshold(const float* x, const float* weight, int64_t n, double target) {
  constexpr int shifts[3] = {21, 10, 0};
  constexpr int bits[3] = {11, 11, 10};
  double bins[1 << 11];
  uint32_t prefix = 0, prefix_mask = 0;
  for (int level = 0; level < 3; ++level) {
    const uint32_t count = 1u << bits[level];
    std::fill(bins, bins + count, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = ordered(x[i]);
      if (x[i] == kNone || (key & prefix_mask) != prefix) continue;
      bins[key >> shifts[level] & (count - 1)] += weight ? weight[i] : 1.0;
    }
    // The bin in which the mass is reached; the lowest one that holds something if it never is.
    uint32_t bin = count, last = 0;
    double below = 0.0;
    while (bin-- > 0) {
      if (bins[bin] == 0.0) continue;
      last = bin;
      if (below + bins[bin] >= target) break;
      below += bins[bin];
    }
    target -= bin == last ? below : below - bins[last];
    prefix |= last << shifts[level];
    prefix_mask |= (count - 1) << shifts[level];
  }
  return prefix;
}

void keep_from(float* x, float* weight, int64_t n, uint32_t threshold) {
  for (int64_t i = 0; i < n; ++i) {
    if (ordered(x[i]) < threshold) {
      x[i] = kNone;
      weight[i] = 0.0f;
    }
  }
}

double mass(const float* weight, int64_t n) {
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) total += weight[i];
  return total;
}

// Philox4x32-10 (Salmon et al., 2011) with key = seed and counter = (position, 0, 0, 0): a uniform
// double in [0, 1) of 53 bits from the first two output words.
double uniform(uint64_t seed, uint32_t position) {
  uint32_t c[4] = {position, 0, 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return ((c[0] >> 5) * 67108864.0 + (c[1] >> 6)) / 9007199254740992.0;
}

int32_t draw(const float* weight, int64_t n, double u) {
  const double target = u * mass(weight, n);
  double sum = 0.0;
  int32_t last = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (weight[i] == 0.0f) continue;
    sum += weight[i];
    last = static_cast<int32_t>(i);
    if (sum > target) break;
  }
  return last;
}

int32_t choose(const RowSampling& p, float* x, int64_t n, int32_t position, float* weight) {
  if (p.temperature == 0.0f) return arg_max(x, n);
  float top = kNone;
  for (int64_t i = 0; i < n; ++i) {
    x[i] /= p.temperature;
    top = std::max(top, x[i]);
  }
  if (top == kNone || !std::isfinite(top)) return -1;
  kernels().exp_all(x, n, top, weight);
  if (p.min_p > 0.0f) {
    for (int64_t i = 0; i < n; ++i) {
      if (weight[i] < p.min_p) {
        x[i] = kNone;
        weight[i] = 0.0f;
      }
    }
  }
  if (p.top_k > 0 && p.top_k < n) {
    keep_from(x, weight, n, mass_threshold(x, nullptr, n, p.top_k));
  }
  if (p.top_p < 1.0f) {
    keep_from(x, weight, n, mass_threshold(x, weight, n, p.top_p * mass(weight, n)));
  }
  return draw(weight, n, uniform(p.seed, static_cast<uint32_t>(position)));
}

void log_probabilities(const float* raw, int64_t n, int wanted, float* weight, Drawn* out) {
  float top = kNone;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, raw[i]);
  kernels().exp_all(raw, n, top, weight);
  const double log_sum = top + std::log(mass(weight, n));
  out->logprob = static_cast<float>(raw[out->token] - log_sum);
  out->rank = 1;
  for (int64_t i = 0; i < n; ++i) out->rank += raw[i] > raw[out->token];
  // The best few by insertion; of equal ones the lowest id first.
  int found = 0;
  for (int64_t i = 0; i < n && wanted > 0; ++i) {
    if (found == wanted && raw[i] <= raw[out->top_id[found - 1]]) continue;
    int at = found < wanted ? found++ : found - 1;
    while (at > 0 && raw[i] > raw[out->top_id[at - 1]]) {
      out->top_id[at] = out->top_id[at - 1];
      --at;
    }
    out->top_id[at] = static_cast<int32_t>(i);
  }
  out->tops = found;
  for (int j = 0; j < found; ++j) {
    out->top[j] = static_cast<float>(raw[out->top_id[j]] - log_sum);
  }
}

}  // namespace

int64_t sample_scratch_bytes(int64_t vocab) { return vocab * 12; }

void sample_row(const RowSampling& params, float* logits, int64_t vocab, const int32_t* history,
                int32_t length, void* scratch, Drawn* out) {
  const Scratch s = split(scratch, vocab);
  out->token = -1;
  out->tops = 0;
  out->rank = 0;
  out->logprob = 0.0f;
  if (!all_finite(logits, vocab)) return;
  const bool report = params.num_logprobs >= 0;
  if (report) std::memcpy(s.raw, logits, static_cast<size_t>(vocab) * 4);
  mask(params, logits, vocab, history, length);
  penalise(params, logits, history, length, s.count);
  out->token = choose(params, logits, vocab, length, s.weight);
  if (report && out->token >= 0) {
    log_probabilities(s.raw, vocab, std::min(params.num_logprobs, kMostLogprobs), s.weight, out);
  }
}

}  // namespace octavo
