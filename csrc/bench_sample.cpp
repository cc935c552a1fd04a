// Microseconds to draw one token from a vocabulary's logits, by what a request asks for.
//
//   bench_sample
//
// Logits look like a language model's: a few hundred large ones over a wide floor. Every draw gets
// fresh logits (processing may change them); the copy is not timed. Median of many.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "linear.h"
#include "sample.h"

namespace octavo {
namespace {

struct Case {
  const char* name;
  std::function<void(RowSampling&)> set;
};

double median_us(const Case& c, int64_t vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<size_t>(vocab)), work(logits.size());
  for (float& x : logits) x = 2.5f * normal(random);
  for (int i = 0; i < 300; ++i) logits[random() % logits.size()] += 8.0f;
  std::vector<int32_t> history(4000);
  for (int32_t& id : history) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  std::vector<uint8_t> scratch(static_cast<size_t>(sample_scratch_bytes(vocab)));
  RowSampling row;
  row.temperature = 0.8f;
  row.prompt_len = 1000;
  c.set(row);
  Drawn drawn;
  std::vector<double> times;
  for (int pass = 0; pass < 60; ++pass) {
    std::copy(logits.begin(), logits.end(), work.begin());
    const auto begun = std::chrono::steady_clock::now();
    row.seed = static_cast<uint64_t>(pass);
    sample_row(row, work.data(), vocab, history.data(), 3900 + pass, scratch.data(), &drawn);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    times.push_back(took.count() * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + 30, times.end());
  return times[30];
}

}  // namespace
}  // namespace octavo

int main() {
  using namespace octavo;
  select_isa(detect_isa());
  const Case cases[] = {
      {"greedy", [](RowSampling& r) { r.temperature = 0.0f; }},
      {"temperature", [](RowSampling&) {}},
      {"top-k 50", [](RowSampling& r) { r.top_k = 50; }},
      {"top-k 5000", [](RowSampling& r) { r.top_k = 5000; }},
      {"top-p 0.95", [](RowSampling& r) { r.top_p = 0.95f; }},
      {"top-p 0.95, hot", [](RowSampling& r) { r.top_p = 0.95f, r.temperature = 20.0f; }},
      {"min-p 0.05", [](RowSampling& r) { r.min_p = 0.05f; }},
      {"all three", [](RowSampling& r) { r.top_k = 50, r.top_p = 0.95f, r.min_p = 0.05f; }},
      {"penalties", [](RowSampling& r) { r.repetition = 1.2f, r.presence = 0.5f; }},
      {"logprobs 20", [](RowSampling& r) { r.num_logprobs = 20; }},
      {"everything", [](RowSampling& r) {
         r.top_k = 50, r.top_p = 0.95f, r.repetition = 1.2f, r.num_logprobs = 20;
       }},
  };
  constexpr int64_t vocabs[] = {49152, 152064, 262144};
  std::printf("%s, one thread; median microseconds a row\n%-18s", kIsaNames[static_cast<int>(detect_isa())],
              "vocabulary");
  for (const int64_t vocab : vocabs) std::printf("%10lld", static_cast<long long>(vocab));
  std::printf("\n");
  for (const Case& c : cases) {
    std::printf("%-18s", c.name);
    for (const int64_t vocab : vocabs) std::printf("%10.0f", median_us(c, vocab));
    std::printf("\n");
  }
}
