#include "ceiling.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels.h"
#include "region.h"
#include "team.h"

namespace octavo {
namespace {

constexpr int kPasses = 7;

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Reading {
  const uint8_t* data;
  int64_t bytes;
  int threads;
  std::atomic<uint64_t> sum{0};
};

// Eight streams of lines a thread: enough loads in flight for what the memory can give.
void read_part(void* context, int thread) {
  auto& r = *static_cast<Reading*>(context);
  const int64_t part = r.bytes / r.threads / 4096 * 4096;
  const uint8_t* p = r.data + thread * part;
  uint64_t sums[8] = {};
  for (int64_t at = 0; at < part; at += 512) {
    for (int i = 0; i < 8; ++i) {
      uint64_t words[8];
      std::memcpy(words, p + at + 64 * i, 64);
      for (const uint64_t word : words) sums[i] += word;
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  r.sum += total;
}

struct Burning {
  std::atomic<int64_t> products{0};
};

void burn_part(void* context, int) {
  static_cast<Burning*>(context)->products += kernels().burn(200000);
}

}  // namespace

double read_bandwidth(int threads, int64_t bytes) {
  Region region(bytes);
  std::memset(region.data(), 1, static_cast<size_t>(bytes));
  Team team(threads);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    Reading reading{region.data(), bytes, threads};
    const double begun = seconds();
    team.run(read_part, &reading);
    best = std::max(best, static_cast<double>(bytes) / (seconds() - begun));
  }
  return best;
}

double matrix_rate(int threads) {
  Team team(threads);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    Burning burning;
    const double begun = seconds();
    team.run(burn_part, &burning);
    best = std::max(best, 2.0 * static_cast<double>(burning.products) / (seconds() - begun));
  }
  return best;
}

}  // namespace octavo
