// Speed of the linear kernels alone: SmolLM2-135M's shapes, one and two threads.
//
//   bench_linear [portable|avx2|avx512] [threads ...]
//
// First each shape by itself with one row, over copies that together exceed the caches; then every
// linear of the model in order (lm_head included up to 64 rows), as a step runs them: quantise the
// activations, meet, claim tiles, meet. Best of several passes: the machine's, not its neighbours'.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "linear.h"
#include "region.h"
#include "team.h"

namespace octavo {
namespace {

struct Shape {
  const char* name;
  Format format;
  int64_t n, k;
};

constexpr Shape kSquare = {"q, o    ", Format::q4_1, 576, 576};
constexpr Shape kNarrow = {"k, v    ", Format::q4_1, 192, 576};
constexpr Shape kUp = {"gate, up", Format::q4_1, 1536, 576};
constexpr Shape kDown = {"down    ", Format::q4_1, 576, 1536};
constexpr Shape kHead = {"lm_head ", Format::q8_0, 49152, 576};
constexpr Shape kLayer[] = {kSquare, kNarrow, kNarrow, kSquare, kUp, kUp, kDown};
constexpr int kLayers = 30;
constexpr int64_t kMostWidth = 1536, kHeadRows = 64;

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Pseudo-random bytes with halves in [2⁻⁶, 2⁻⁵) where a block's scale and min lie.
std::vector<uint8_t> random_source(const Shape& s) {
  const size_t block = s.format == Format::q4_1 ? 20 : 34;
  std::vector<uint8_t> src(static_cast<size_t>(s.n * s.k / 32) * block);
  uint32_t state = 1;
  for (uint8_t& byte : src) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  for (size_t i = 0; i < src.size(); i += block) {
    src[i + 1] = 0x24 | (src[i + 1] & 3);
    if (block == 20) src[i + 3] = 0xA4 | (src[i + 3] & 3);
  }
  return src;
}

struct Weights {
  explicit Weights(const std::vector<Shape>& shapes) {
    for (const Shape& s : shapes) {
      Weight w;
      plan_weight(s.format, s.n, s.k, &w);
      list.push_back(w);
      bytes += w.bytes;
    }
    region = std::make_unique<Region>(bytes + 64 * static_cast<int64_t>(list.size()));
    uint8_t* at = region->data();
    for (size_t i = 0; i < list.size(); ++i) {
      list[i].data = at;
      at += (list[i].bytes + 63) / 64 * 64;
      pack_weight(list[i], random_source(shapes[i]).data(), 0, weight_strips(list[i]));
    }
  }

  std::vector<Weight> list;
  int64_t bytes = 0;
  std::unique_ptr<Region> region;
};

struct Pass {
  Pass(const Weights& w, Team& t, int64_t count) : weights(w), team(t), rows(count) {
    int64_t most_n = 0;
    for (const Weight& one : w.list) most_n = std::max(most_n, one.n);
    x.resize(static_cast<size_t>(rows * kMostWidth));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 2003) / 1000.0f - 1;
    act = std::make_unique<Region>(act_bytes(Act::q8, rows, kMostWidth));
    out = std::make_unique<Region>(rows * most_n * 4);
    row_claims = std::make_unique<std::atomic<int64_t>[]>(w.list.size());
    tile_claims = std::make_unique<std::atomic<int64_t>[]>(w.list.size());
  }

  static void work(void* self, int) {
    auto& p = *static_cast<Pass*>(self);
    for (size_t i = 0; i < p.weights.list.size(); ++i) {
      const Weight& w = p.weights.list[i];
      for (int64_t r; (r = p.row_claims[i].fetch_add(1)) < p.rows;) {
        prepare_act(Act::q8, p.x.data(), w.k, w.k, p.rows, r, r + 1, p.act->data());
      }
      p.team.barrier();
      auto* to = reinterpret_cast<float*>(p.out->data());
      const LinearCall call = {&w, p.act->data(), 0, p.rows, to, w.n, nullptr, false};
      const int64_t tiles = linear_tiles(call);
      for (int64_t t; (t = p.tile_claims[i].fetch_add(1)) < tiles;) linear_tile(call, t);
      p.team.barrier();
    }
  }

  double best(int passes) {
    double least = 1e30;
    for (int i = 0; i < passes; ++i) {
      for (size_t j = 0; j < weights.list.size(); ++j) row_claims[j] = tile_claims[j] = 0;
      const double start = seconds();
      team.run(work, this);
      least = std::min(least, seconds() - start);
    }
    return least;
  }

  const Weights& weights;
  Team& team;
  int64_t rows;
  std::vector<float> x;
  std::unique_ptr<Region> act, out;
  std::unique_ptr<std::atomic<int64_t>[]> row_claims, tile_claims;
};

void shapes_alone(Team& team) {
  constexpr int64_t kBeyondCaches = int64_t{96} << 20;
  std::printf("  one row       GB/s      µs per linear\n");
  for (const Shape& s : {kSquare, kNarrow, kUp, kDown, kHead}) {
    Weight w;
    plan_weight(s.format, s.n, s.k, &w);
    const auto copies = static_cast<size_t>(kBeyondCaches / w.bytes + 1);
    const Weights weights(std::vector<Shape>(copies, s));
    const double t = Pass(weights, team, 1).best(5);
    std::printf("  %s %8.1f %12.1f   [%lld, %lld]\n", s.name, static_cast<double>(weights.bytes) / t / 1e9,
                t / static_cast<double>(copies) * 1e6, static_cast<long long>(s.n),
                static_cast<long long>(s.k));
  }
}

void whole_model(Team& team) {
  std::vector<Shape> shapes;
  for (int i = 0; i < kLayers; ++i) shapes.insert(shapes.end(), std::begin(kLayer), std::end(kLayer));
  const Weights layers(shapes);
  const Weights head({kHead});
  std::printf("  all linears   ms of layers   ms of lm_head   tokens/s   GB/s\n");
  for (const int64_t rows : {1, 2, 3, 4, 8, 16, 32, 64, 256, 512}) {
    const int passes = rows >= 64 ? 3 : 8;
    const double body = Pass(layers, team, rows).best(passes);
    const bool with_head = rows <= kHeadRows;
    const double top = with_head ? Pass(head, team, rows).best(passes) : 0;
    const auto bytes = static_cast<double>(layers.bytes + (with_head ? head.bytes : 0));
    std::printf("  %4lld rows %15.2f %15.2f %10.0f %6.1f%s\n", static_cast<long long>(rows), body * 1e3,
                top * 1e3, static_cast<double>(rows) / (body + top), bytes / (body + top) / 1e9,
                with_head ? "" : "  (without lm_head)");
  }
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  using namespace octavo;
  const char* names[] = {"portable", "avx2", "avx512"};
  int isa = static_cast<int>(detect_isa());
  int next = 1;
  for (int i = 0; argc > 1 && i <= static_cast<int>(detect_isa()); ++i) {
    if (std::strcmp(argv[1], names[i]) == 0) isa = i, next = 2;
  }
  select_isa(static_cast<Isa>(isa));
  std::vector<int> threads;
  for (; next < argc; ++next) {
    const int count = std::atoi(argv[next]);
    if (count < 1) {
      std::fprintf(stderr, "bench_linear: '%s' is no set this CPU has and no thread count\n", argv[next]);
      return 2;
    }
    threads.push_back(count);
  }
  if (threads.empty()) threads = {1, 2};
  for (const int count : threads) {
    std::printf("%s, %d thread%s\n", names[isa], count, count == 1 ? "" : "s");
    Team team(count);
    shapes_alone(team);
    whole_model(team);
  }
  return 0;
}
