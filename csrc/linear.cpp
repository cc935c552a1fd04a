#include "linear.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels.h"
#include "region.h"

namespace octavo {
namespace {

Isa chosen = Isa::portable;
const Kernels* table = &kPortableKernels;

// A tile is a run of strips × a run of rows. With few rows the weights' bytes are the work: a tile is
// one contiguous read of at least 48 KiB (at 24 KiB claiming tiles and restarting the processor's
// prefetching took a third of the time), more where the matrix still gives 64 tiles. With many rows
// the multiplications are the work: 64 rows × strips that stay in the second-level cache.
constexpr int64_t kTileBytes = 48 * 1024, kMostTileBytes = 192 * 1024;
constexpr int64_t kTilesEnough = 64;
constexpr int64_t kTileRows = 64;

struct Tiling {
  int64_t strips_per_tile, strip_tiles, row_tiles;
};

Tiling tiling(const LinearCall& c) {
  const int64_t strips = weight_strips(*c.w);
  const int64_t bytes = strip_bytes(c.w->layout, c.w->k);
  const int64_t most = c.rows <= kTileRows ? kMostTileBytes : kTileBytes;
  const int64_t target = std::clamp(strips * bytes / kTilesEnough, kTileBytes, most);
  const int64_t per_tile = std::max<int64_t>(target / bytes, 1);
  return {per_tile, (strips + per_tile - 1) / per_tile, (c.rows + kTileRows - 1) / kTileRows};
}

#if defined(__x86_64__)
// The fewest rows at which the matrix unit beats the vector unit on this CPU: a millisecond of
// strips as they are in small models. Both must give the same bits; a unit that does not (a faulty
// emulator, say) is left alone.
int64_t measure_tile_rows() {
  Weight w;
  plan_weight(Format::q8_0, 8 * kStrip, 576, &w);
  constexpr int64_t most = 32;
  const Region data(w.bytes), act(act_bytes(Act::q8, most, w.k)), out(2 * most * w.n * 4);
  w.data = data.data();
  std::vector<uint8_t> source(static_cast<size_t>(w.n * w.k / kBlock * 34));
  std::vector<float> x(static_cast<size_t>(most * w.k));
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 41 % 59);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) - 50.0f;
  pack_weight(w, source.data(), 0, weight_strips(w));
  prepare_act(Act::q8, x.data(), w.k, w.k, 0, most, act.data());
  auto* results = reinterpret_cast<float*>(out.data());
  const auto best = [&](int64_t rows, int64_t from, float* to) {
    kAmxKernels.tile_rows() = from;
    const LinearCall call = {&w, act.data(), rows, to, w.n, nullptr, false};
    double least = 1.0;
    for (int pass = 0; pass < 5; ++pass) {
      using Clock = std::chrono::steady_clock;
      const auto begun = Clock::now();
      for (int64_t t = 0; t < linear_tiles(call); ++t) linear_tile(call, t);
      least = std::min(least, std::chrono::duration<double>(Clock::now() - begun).count());
    }
    return least;
  };
  float* others = results + most * w.n;
  int64_t rows = 1;
  while (rows < most && best(rows, 1, results) >= best(rows, most + 1, others)) {
    rows += rows < 8 ? 1 : 8;
  }
  best(most, 1, results);
  best(most, most + 1, others);
  kAmxKernels.leave();
  const bool same = std::memcmp(results, others, static_cast<size_t>(most * w.n) * 4) == 0;
  return same ? rows : std::numeric_limits<int64_t>::max();
}
#endif

}  // namespace

void select_isa(Isa isa) {
  chosen = isa;
  table = &kPortableKernels;
#if defined(__x86_64__)
  if (isa == Isa::avx2) table = &kAvx2Kernels;
  if (isa == Isa::avx512) table = &kAvx512Kernels;
  if (isa == Isa::avx512_bf16) table = &kAvx512Bf16Kernels;
  if (isa == Isa::amx) {
    table = &kAmxKernels;
    static const int64_t rows = measure_tile_rows();
    table->tile_rows() = rows;
  }
#elif defined(__aarch64__)
  if (isa == Isa::neon) table = &kNeonKernels;
#endif
}

const Kernels& kernels() { return *table; }

void use_kernels(const Kernels& other) { table = &other; }

Isa selected_isa() { return chosen; }

Act weight_act(const Weight& w) {
  if (w.layout == kBF16 && table->to_bf16) return Act::bf16;
  return is_float(w.layout) ? Act::f32 : Act::q8;
}

int64_t act_bytes(Act act, int64_t rows, int64_t k) {
  switch (act) {
    case Act::q8: return (rows + kPanelRows - 1) / kPanelRows * panel_bytes(k);
    case Act::bf16: return (rows + kPanelRows - 1) / kPanelRows * kPanelRows * bf16_row_bytes(k);
    default: return 0;
  }
}

void prepare_act(Act act, const float* x, int64_t ldx, int64_t k, int64_t r0, int64_t r1,
                 void* dst) {
  for (int64_t r = r0; r < r1; ++r) {
    if (act == Act::q8) table->quantize(x + r * ldx, k, r, dst);
    if (act == Act::bf16) {
      table->to_bf16(x + r * ldx, k, static_cast<uint8_t*>(dst) + r * bf16_row_bytes(k));
    }
  }
}

int64_t linear_tiles(const LinearCall& c) {
  const Tiling t = tiling(c);
  return t.strip_tiles * t.row_tiles;
}

void linear_tile(const LinearCall& c, int64_t tile) {
  const Tiling t = tiling(c);
  // Row tiles are the inner index, so that neighbours share the weights' strips.
  const int64_t first = tile / t.row_tiles * t.strips_per_tile;
  const int64_t last = std::min(first + t.strips_per_tile, weight_strips(*c.w));
  const int64_t r0 = tile % t.row_tiles * kTileRows;
  const int64_t rows = std::min(kTileRows, c.rows - r0);
  const int64_t bytes = strip_bytes(c.w->layout, c.w->k);
  for (int64_t s = first; s < last; ++s) {
    const StripCall call = {
        .strip = c.w->data + s * bytes,
        // With few rows strips are read one after the other so fast that the processor sees it.
        .ahead = rows > kPanelRows && s + 1 < last ? c.w->data + (s + 1) * bytes : nullptr,
        .act = c.act,
        .k = c.w->k,
        .r0 = r0,
        .r1 = r0 + rows,
        .out = c.out + s * kStrip,
        .ldo = c.ldo,
        .bias = c.bias ? c.bias + s * kStrip : nullptr,
        .valid = std::min(kStrip, c.w->n - s * kStrip),
        .accumulate = c.accumulate,
    };
    table->strip(c.w->layout, call);
  }
}

}  // namespace octavo
