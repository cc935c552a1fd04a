#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "kernels.h"

namespace octavo {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLeast = std::numeric_limits<float>::lowest();  // −∞ is what masks leave

// What one row's processing works on.
struct Scratch {
  float* weight;  // [vocab] exp((logit − top) / temperature)
  float* raw;     // [vocab] the logits before processing, for log-probabilities
  int32_t* ids;   // [vocab + 16] candidates
  float* tops;    // [runs] the largest logit of every kScanRun
  float* sums;    // [runs] their weights
};

int64_t runs_of(int64_t vocab) { return (vocab + kScanRun - 1) / kScanRun; }

Scratch split(void* scratch, int64_t vocab) {
  Scratch s;
  s.weight = static_cast<float*>(scratch);
  s.raw = s.weight + vocab;
  s.ids = reinterpret_cast<int32_t*>(s.raw + vocab);
  s.tops = reinterpret_cast<float*>(s.ids + vocab + 16);
  s.sums = s.tops + runs_of(vocab);
  return s;
}

void mask(const RowSampling& p, float* logits, int64_t vocab, const int32_t* history,
          int32_t length) {
  if (!p.allowed.empty()) {
    for (int64_t i = 0; i < vocab; i += 32) {
      const uint32_t word = p.allowed[static_cast<size_t>(i / 32)];
      const int64_t n = std::min<int64_t>(32, vocab - i);
      if (word == 0) {
        std::fill(logits + i, logits + i + n, kNone);
      } else {
        for (int64_t j = 0; j < n; ++j) {
          if (!(word >> j & 1u)) logits[i + j] = kNone;
        }
      }
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

void penalise(RowSampling& p, float* logits, const int32_t* history, int32_t length) {
  if (p.repetition == 1.0f && p.presence == 0.0f && p.frequency == 0.0f) return;
  p.counts.follow(history, length, p.prompt_len);
  for (const TokenCounts::Entry& entry : p.counts.entries()) {
    float& x = logits[entry.id];
    x = x > 0.0f ? x / p.repetition : x * p.repetition;
    if (entry.times == 0) continue;
    x -= p.frequency * static_cast<float>(entry.times);
    x -= p.presence;
  }
}

// The value at which the running mass of `n` candidates, from the largest value down, first reaches
// `target`; equal values count as one. By histograms of the values over ever narrower ranges, so
// nothing is sorted but a last handful. weight null: each candidate weighs 1.
float mass_threshold(const float* x, const float* weight, const int32_t* ids, int64_t n,
                     double target) {
  constexpr int64_t bins = 1024, few = 64;
  double above = 0.0;
  float low = std::numeric_limits<float>::infinity(), high = kNone;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, x[ids[i]]);
    high = std::max(high, x[ids[i]]);
  }
  for (;;) {
    double masses[bins] = {};
    if (!(low < high)) return low;
    const double scale = static_cast<double>(bins) / (double{high} - double{low});
    const auto bin_of = [&](float value) {
      const auto bin = static_cast<int64_t>((double{high} - double{value}) * scale);
      return std::clamp<int64_t>(bin, 0, bins - 1);
    };
    for (int64_t i = 0; i < n; ++i) {
      const float value = x[ids[i]];
      if (value >= low && value <= high) masses[bin_of(value)] += weight ? weight[ids[i]] : 1.0;
    }
    int64_t bin = 0, last = 0;
    for (; bin < bins; ++bin) {
      if (masses[bin] == 0.0) continue;
      last = bin;
      if (above + masses[bin] >= target) break;
      above += masses[bin];
    }
    if (bin == bins) above -= masses[last];  // rounding: the mass is reached by the last one
    // The values in that bin: their range, and themselves while they are few.
    std::pair<float, float> found[few];
    int64_t count = 0;
    float least = high, most = low;
    for (int64_t i = 0; i < n; ++i) {
      const float value = x[ids[i]];
      if (!(value >= low && value <= high) || bin_of(value) != last) continue;
      least = std::min(least, value);
      most = std::max(most, value);
      if (count < few) found[count] = {value, weight ? weight[ids[i]] : 1.0f};
      ++count;
    }
    if (least == most) return least;
    if (count <= few) {
      std::sort(found, found + count, [](auto& a, auto& b) { return a.first > b.first; });
      for (int64_t i = 0; i < count; ++i) {
        above += found[i].second;
        if (above >= target) return found[i].first;
      }
      return least;
    }
    low = least;
    high = most;
  }
}

// mass_threshold over all of x, for when most of it are candidates. `high`: the largest value; below
// `low` there may be values, but not likely the threshold.
float wide_threshold(const float* x, const float* weight, int64_t n, float low, float high,
                     double target, int32_t* ids) {
  constexpr int32_t bins = 256;
  constexpr int64_t some = 256, tables = 8;
  const float scale = static_cast<float>(bins) / (high - low);
  if (!(scale > 0.0f && scale < 1e30f)) {
    const int64_t count = kernels().select(x, n, kLeast, high, ids);
    return mass_threshold(x, weight, ids, count, target);
  }
  // Several tables, so that neighbours in one bin need not wait for each other.
  double masses[tables][bins] = {};
  int32_t bin[some];
  for (int64_t i = 0; i < n; i += some) {
    const int64_t count = std::min(some, n - i);
    kernels().cut(x + i, count, high, scale, bins, bin);
    for (int64_t j = 0; j < count; ++j) masses[j % tables][bin[j]] += weight ? weight[i + j] : 1.0;
  }
  for (int64_t t = 1; t < tables; ++t) {
    for (int32_t b = 0; b < bins; ++b) masses[0][b] += masses[t][b];
  }
  int32_t found = 0;
  double above = 0.0;
  for (; found < bins - 1; ++found) {
    if (above + masses[0][found] >= target) break;
    above += masses[0][found];
  }
  // The bin's values, by its edges with a margin for rounding, then by the same sums as above.
  const float width = 1.0f / scale, edge = high - static_cast<float>(found) * width;
  const float least = found == bins - 1 ? kLeast : edge - 1.5f * width;
  int64_t count = kernels().select(x, n, least, edge + 0.5f * width, ids), kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    float at = (high - x[ids[i]]) * scale;
    at = std::min(std::max(at, 0.0f), static_cast<float>(bins - 1));
    if (static_cast<int32_t>(at) == found) ids[kept++] = ids[i];
  }
  return mass_threshold(x, weight, ids, kept, target - above);
}

double mass(const float* weight, const int32_t* ids, int64_t n) {
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) total += weight[ids[i]];
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

// Keeps the candidates whose value is at least `least`.
int64_t keep_from(const float* x, float least, int32_t* ids, int64_t n) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[ids[i]] >= least) ids[kept++] = ids[i];
  }
  return kept;
}

// The ids of the k largest values, and of those that equal the last of them. s.tops: the runs' maxima.
int64_t largest(const float* x, int64_t n, int64_t k, float top, const Scratch& s) {
  const Kernels& kernel = kernels();
  const int64_t runs = runs_of(n);
  if (k > runs) {
    const float lowest = *std::min_element(s.tops, s.tops + runs);
    const float low = std::max(lowest - 2.0f * (top - lowest), kLeast);
    const float least = wide_threshold(x, nullptr, n, low, top, static_cast<double>(k), s.ids);
    return kernel.select(x, n, least, top, s.ids);
  }
  // k of the runs' maxima are as large as the k-th largest of them, so at least k values are.
  std::copy(s.tops, s.tops + runs, s.sums);
  std::nth_element(s.sums, s.sums + k - 1, s.sums + runs, std::greater<float>());
  const int64_t count = kernel.select(x, n, std::max(s.sums[k - 1], kLeast), top, s.ids);
  if (count <= k) return count;
  const float least = mass_threshold(x, nullptr, s.ids, count, static_cast<double>(k));
  return keep_from(x, least, s.ids, count);
}

double sum_of(const float* sums, int64_t runs) {
  double total = 0.0;
  for (int64_t r = 0; r < runs; ++r) total += sums[r];
  return total;
}

int32_t draw_from(const float* weight, const int32_t* ids, int64_t n, double u) {
  const double target = u * mass(weight, ids, n);
  double sum = 0.0;
  int32_t last = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (weight[ids[i]] == 0.0f) continue;
    sum += weight[ids[i]];
    last = ids[i];
    if (sum > target) break;
  }
  return last;
}

// Draws among all tokens: the run first, by the runs' sums.
int32_t draw_any(const float* weight, const float* sums, int64_t n, double u) {
  const double target = u * sum_of(sums, runs_of(n));
  double before = 0.0;
  int64_t run = 0, last_run = -1;
  for (; run < runs_of(n); ++run) {
    if (sums[run] == 0.0f) continue;
    last_run = run;
    if (before + sums[run] > target) break;
    before += sums[run];
  }
  if (last_run < 0) return -1;
  if (run == runs_of(n)) before -= sums[last_run];
  int32_t last = -1;
  const int64_t begin = last_run * kScanRun, end = std::min(begin + kScanRun, n);
  for (int64_t i = begin; i < end; ++i) {
    if (weight[i] == 0.0f) continue;
    before += weight[i];
    last = static_cast<int32_t>(i);
    if (before > target) break;
  }
  return last;
}

// s.tops: of x as it is now. Order: min-p, top-k, top-p over the survivors.
int32_t choose(const RowSampling& p, const float* x, int64_t n, int32_t position, float top,
               const Scratch& s) {
  if (p.temperature == 0.0f) {
    // Of equal ones the lowest id: the first run that has it, its first value.
    const int64_t run = std::find(s.tops, s.tops + runs_of(n), top) - s.tops;
    return static_cast<int32_t>(std::find(x + run * kScanRun, x + n, top) - x);
  }
  const float scale = 1.0f / p.temperature;
  if (!std::isfinite(scale) || !std::isfinite(top * scale)) return -1;
  const double u = uniform(p.seed, static_cast<uint32_t>(position));
  const Kernels& kernel = kernels();
  const bool few = p.top_k > 0 && p.top_k < n;
  int64_t count;
  double total;  // of the weights that top-p is a share of
  if (few) {
    count = largest(x, n, p.top_k, top, s);
    // Their weights alone: gathered, weighed, put where they belong.
    float values[256], weights[256], sums[256 / kScanRun];
    for (int64_t i = 0; i < count; i += 256) {
      const int64_t some = std::min<int64_t>(256, count - i);
      for (int64_t j = 0; j < some; ++j) values[j] = x[s.ids[i + j]];
      kernel.weigh(values, some, top, scale, weights, sums);
      for (int64_t j = 0; j < some; ++j) s.weight[s.ids[i + j]] = weights[j];
    }
    if (p.min_p > 0.0f) count = keep_from(s.weight, p.min_p, s.ids, count);
    total = mass(s.weight, s.ids, count);
  } else {
    kernel.weigh(x, n, top, scale, s.weight, s.sums);
    if (p.min_p <= 0.0f && p.top_p >= 1.0f) return draw_any(s.weight, s.sums, n, u);
    total = sum_of(s.sums, runs_of(n));
    // What top-p leaves out weighs less than 1 − top_p together, so nothing that it keeps weighs
    // less than an n-th of that.
    const double share = 0.999 * (1.0 - p.top_p) * total / static_cast<double>(n);
    const float least = p.min_p > 0.0f ? p.min_p : std::max(static_cast<float>(share), 1e-38f);
    count = kernel.select(s.weight, n, least, 1.0f, s.ids);
    if (p.min_p > 0.0f) {
      total = mass(s.weight, s.ids, count);
    } else if (count > n / 8) {
      const float low = top + std::log(least) * p.temperature;
      const float bound = wide_threshold(x, s.weight, n, low, top, p.top_p * total, s.ids);
      kernel.keep(x, n, bound, s.weight, s.sums);
      return draw_any(s.weight, s.sums, n, u);
    }
  }
  if (p.top_p < 1.0f && count > 0) {
    const float least = mass_threshold(x, s.weight, s.ids, count, p.top_p * total);
    count = keep_from(x, least, s.ids, count);
  }
  return draw_from(s.weight, s.ids, count, u);
}

// raw: the unprocessed logits, of which s.tops may no longer be the maxima.
void log_probabilities(const float* raw, int64_t n, int wanted, const Scratch& s, Drawn* out) {
  const Kernels& kernel = kernels();
  kernel.scan(raw, n, s.tops);
  const float top = *std::max_element(s.tops, s.tops + runs_of(n));
  kernel.weigh(raw, n, top, 1.0f, s.weight, s.sums);
  const double log_sum = top + std::log(sum_of(s.sums, runs_of(n)));
  const float drawn = raw[out->token];
  out->logprob = static_cast<float>(drawn - log_sum);
  int32_t larger = 0;
  for (int64_t i = 0; i < n; ++i) larger += raw[i] > drawn;
  out->rank = 1 + larger;
  out->tops = static_cast<int32_t>(std::min<int64_t>(wanted, n));
  if (wanted == 0) return;
  const int64_t count = largest(raw, n, out->tops, top, s);
  // Of equal ones the lowest id first.
  std::partial_sort(s.ids, s.ids + out->tops, s.ids + count, [&](int32_t a, int32_t b) {
    return raw[a] > raw[b] || (raw[a] == raw[b] && a < b);
  });
  for (int j = 0; j < out->tops; ++j) {
    out->top_id[j] = s.ids[j];
    out->top[j] = static_cast<float>(raw[s.ids[j]] - log_sum);
  }
}

}  // namespace

void TokenCounts::follow(const int32_t* history, int32_t length, int32_t prompt_len) {
  if (length < known_ || (known_ > 0 && history[known_ - 1] != last_)) clear();
  for (; known_ < length; ++known_) {
    last_ = history[known_];
    const auto [at, fresh] = index_.try_emplace(last_, entries_.size());
    if (fresh) entries_.push_back({last_, 0});
    if (known_ >= prompt_len) ++entries_[at->second].times;
  }
}

void TokenCounts::clear() {
  known_ = 0;
  index_.clear();
  entries_.clear();
}

int64_t sample_scratch_bytes(int64_t vocab) { return 4 * (3 * vocab + 16 + 2 * runs_of(vocab)); }

void sample_row(RowSampling& params, float* logits, int64_t vocab, const int32_t* history,
                int32_t length, void* scratch, Drawn* out) {
  const Scratch s = split(scratch, vocab);
  out->token = -1;
  out->tops = 0;
  out->rank = 0;
  out->logprob = 0.0f;
  const auto scan = [&] { return kernels().scan(logits, vocab, s.tops); };
  if (!scan()) return;
  const bool report = params.num_logprobs >= 0;
  if (params.changes_logits()) {
    if (report) std::memcpy(s.raw, logits, static_cast<size_t>(vocab) * 4);
    mask(params, logits, vocab, history, length);
    penalise(params, logits, history, length);
    scan();  // what is masked is not finite, and may be
  }
  const float top = *std::max_element(s.tops, s.tops + runs_of(vocab));
  if (!std::isfinite(top)) return;
  out->token = choose(params, logits, vocab, length, top, s);
  if (report && out->token >= 0) {
    log_probabilities(params.changes_logits() ? s.raw : logits, vocab,
                      std::min(params.num_logprobs, kMostLogprobs), s, out);
  }
}

}  // namespace octavo
