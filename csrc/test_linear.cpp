// The linear kernels against double precision, for every format and instruction set this CPU has.
//
// Sources are random bytes, dequantised here value by value from the formats' definitions and not
// through pack.cpp. Exit status 0: all held.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "half.h"
#include "kernels.h"
#include "kv.h"
#include "linear.h"

namespace octavo {
namespace {

constexpr const char* kFormatNames[] = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0",
                                        "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"};
constexpr int kFormats = 11;
constexpr int64_t kMostRows = 100;

int checks = 0, failures = 0;

struct Case {
  Isa isa;
  Format format;
  int64_t n, k;
};

void check(bool held, const Case& c, const char* what, int64_t row = -1, int64_t column = -1) {
  ++checks;
  if (held || ++failures > 20) return;
  std::printf("FAILED %s %s [%lld, %lld] row %lld column %lld: %s\n",
              kIsaNames[static_cast<int>(c.isa)], kFormatNames[static_cast<int>(c.format)],
              static_cast<long long>(c.n), static_cast<long long>(c.k), static_cast<long long>(row),
              static_cast<long long>(column), what);
}

// 64-byte aligned and exactly as large as asked, so that a sanitizer sees a byte too many.
struct Bytes {
  explicit Bytes(int64_t n)
      : data(static_cast<uint8_t*>(::operator new(static_cast<size_t>(n), std::align_val_t{64}))) {}
  ~Bytes() { ::operator delete(data, std::align_val_t{64}); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  uint8_t* data;
};

int64_t block_values(Format f) { return f < Format::q4_0 ? 1 : f < Format::q4_k ? 32 : 256; }

int64_t block_bytes(Format f) {
  constexpr int64_t bytes[] = {4, 2, 2, 18, 20, 22, 24, 34, 144, 176, 210};
  return bytes[static_cast<int>(f)];
}

// Byte offsets of the float16 fields of a block (−1: none).
struct Halves {
  int first, second;
};
Halves half_fields(Format f) {
  switch (f) {
    case Format::q4_0: case Format::q5_0: case Format::q8_0: return {0, -1};
    case Format::q4_1: case Format::q5_1: case Format::q4_k: case Format::q5_k: return {0, 2};
    case Format::q6_k: return {208, -1};
    default: return {-1, -1};
  }
}

float half_at(const uint8_t* p) { return half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Value i of the block at p is d · q + m, computed in float; d is 1 and m 0 for float formats.
struct Value {
  float d, q, m;
  float value() const { return d * q + m; }
};

Value k_value(Format f, const uint8_t* p, int i) {
  const int sub = i / 32, l = i % 32;
  const uint8_t* s = p + 4;
  const int scale = sub < 4 ? s[sub] % 64 : s[sub + 4] % 16 + s[sub - 4] / 64 * 16;
  const int min = sub < 4 ? s[sub + 4] % 64 : s[sub + 4] / 16 + s[sub] / 64 * 16;
  const uint8_t* codes = p + (f == Format::q5_k ? 48 : 16);
  int q = codes[32 * (sub / 2) + l] / (sub % 2 ? 16 : 1) % 16;
  if (f == Format::q5_k) q += (p[16 + l] >> sub) % 2 * 16;
  return {half_at(p) * static_cast<float>(scale), static_cast<float>(q),
          -(half_at(p + 2) * static_cast<float>(min))};
}

Value value_at(Format f, const uint8_t* p, int i) {
  const auto nibble = [i](const uint8_t* q) { return i < 16 ? q[i] % 16 : q[i - 16] / 16; };
  const auto fifth = [i](const uint8_t* h) { return (h[i / 8] >> i % 8) % 2 * 16; };
  const auto plain = [](float x) { return Value{1, x, 0}; };
  switch (f) {
    case Format::f32: {
      float x;
      std::memcpy(&x, p, 4);
      return plain(x);
    }
    case Format::f16: return plain(half_at(p));
    case Format::bf16: return plain(bf16_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)));
    case Format::q4_0: return {half_at(p), static_cast<float>(nibble(p + 2) - 8), 0};
    case Format::q4_1: return {half_at(p), static_cast<float>(nibble(p + 4)), half_at(p + 2)};
    case Format::q5_0:
      return {half_at(p), static_cast<float>(nibble(p + 6) + fifth(p + 2) - 16), 0};
    case Format::q5_1:
      return {half_at(p), static_cast<float>(nibble(p + 8) + fifth(p + 4)), half_at(p + 2)};
    case Format::q8_0: return {half_at(p), static_cast<float>(static_cast<int8_t>(p[2 + i])), 0};
    case Format::q4_k: case Format::q5_k: return k_value(f, p, i);
    case Format::q6_k: {
      const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
      const int low = p[64 * half + quarter % 2 * 32 + l] / (quarter / 2 ? 16 : 1) % 16;
      const int high = (p[128 + 32 * half + l] >> 2 * quarter) % 4;
      const auto scale = static_cast<int8_t>(p[192 + i / 16]);
      return {half_at(p + 208) * static_cast<float>(scale), static_cast<float>(low + 16 * high - 32), 0};
    }
  }
  return {};
}

// What random bytes lack: scales that a model could have, and the corners among them.
void set_scales(Format f, std::mt19937& random, uint8_t* block) {
  constexpr uint16_t corners[] = {0x0000, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0xFBFF};
  const Halves fields = half_fields(f);
  for (const int at : {fields.first, fields.second}) {
    if (at < 0) continue;
    auto h = static_cast<uint16_t>(0x2000 | (random() & 0x8FFF));
    if (random() % 64 == 0) h = corners[random() % 6];
    std::memcpy(block + at, &h, 2);
  }
  if (f == Format::q8_0 && random() % 8 == 0) std::memset(block + 2, 0x80, 32);  // codes −128
}

std::vector<uint8_t> random_source(Format f, int64_t n, int64_t k, std::mt19937& random) {
  std::vector<uint8_t> src(static_cast<size_t>(n * k / block_values(f) * block_bytes(f)));
  std::normal_distribution<float> normal;
  const auto step = static_cast<size_t>(block_bytes(f));
  for (size_t i = 0; i < src.size(); i += step) {
    if (f == Format::f32 || f == Format::bf16) {
      float x = normal(random);
      if (random() % 64 == 0) x = 1e-41f;  // denormal, in bfloat16 too
      uint8_t bytes[4];
      std::memcpy(bytes, &x, 4);
      std::memcpy(&src[i], bytes + (f == Format::f32 ? 0 : 2), step);
    } else if (f == Format::f16) {
      const auto h = static_cast<uint16_t>(random() & 0xBFFF);  // below 2, denormals among them
      std::memcpy(&src[i], &h, 2);
    } else {
      for (size_t j = 0; j < step; ++j) src[i + j] = static_cast<uint8_t>(random());
      set_scales(f, random, &src[i]);
    }
  }
  return src;
}

struct Packed {
  Packed(const Case& c, std::mt19937& random) : source(random_source(c.format, c.n, c.k, random)) {
    check(plan_weight(c.format, c.n, c.k, &weight) == 0, c, "plan_weight refuses");
    data = std::make_unique<Bytes>(weight.bytes);
    weight.data = data->data;
    // Strips from the last to the first: they must not depend on each other.
    for (int64_t s = weight_strips(weight); s-- > 0;) pack_weight(weight, source.data(), s, s + 1);
  }
  Value value(int64_t row, int64_t column) const {
    const int64_t values = block_values(weight.format);
    const int64_t block = (row * weight.k + column) / values;
    return value_at(weight.format, source.data() + block * block_bytes(weight.format),
                    static_cast<int>(column % values));
  }
  std::vector<uint8_t> source;
  Weight weight;
  std::unique_ptr<Bytes> data;
};

enum class Order { forward, backward, threads };

struct Extras {
  const float* bias = nullptr;
  bool accumulate = false;
};

// Rows [first, first + rows) of x through the kernels; two columns more than n, which stay NaN.
std::vector<float> run(const Weight& w, const float* x, int64_t first, int64_t rows, Order order,
                       const Extras& extras = {}) {
  const float* from = x + first * w.k;
  const int64_t ldo = w.n + 2;
  const float fill = extras.accumulate ? 0.5f : std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(static_cast<size_t>(rows * ldo), fill);
  const Act kind = weight_act(w);
  const Bytes act(act_bytes(kind, rows, w.k) + 1);
  std::memset(act.data, 0xFF, static_cast<size_t>(act_bytes(kind, rows, w.k)));
  for (int64_t r = rows; r-- > 0;) prepare_act(kind, from, w.k, w.k, r, r + 1, act.data);
  const void* input = kind == Act::f32 ? static_cast<const void*>(from) : act.data;
  const LinearCall call = {&w, input, rows, out.data(), ldo, extras.bias, extras.accumulate};
  const int64_t tiles = linear_tiles(call);
  if (order == Order::forward) {
    for (int64_t t = 0; t < tiles; ++t) linear_tile(call, t);
  } else if (order == Order::backward) {
    for (int64_t t = tiles; t-- > 0;) linear_tile(call, t);
  } else {
    std::atomic<int64_t> claim{0};
    const auto work = [&] {
      for (int64_t t; (t = claim.fetch_add(1)) < tiles;) linear_tile(call, t);
    };
    std::thread other(work);
    work();
    other.join();
  }
  return out;
}

bool same(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * 4) == 0;
}

// Activations as a kernel of the format sees them: the quantised formats' contract, in double.
std::vector<double> seen(const Weight& w, const std::vector<float>& x) {
  std::vector<double> out(x.begin(), x.end());
  if (weight_act(w) == Act::f32) return out;
  if (weight_act(w) == Act::bf16) {
    for (size_t i = 0; i < x.size(); ++i) {
      const float rounded = bf16_to_float(to_bf16(x[i]));
      out[i] = std::fabs(rounded) < std::numeric_limits<float>::min() ? 0.0 : double{rounded};
    }
    return out;
  }
  for (size_t b = 0; b < x.size(); b += 32) {
    float amax = 0;
    for (size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(x[i]));
    const float scale = amax / 127.0f;
    const float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
    for (size_t i = b; i < b + 32; ++i) {
      out[i] = static_cast<double>(std::nearbyint(x[i] * inverse)) * static_cast<double>(scale);
    }
  }
  return out;
}

// Each term's rounding is bounded by the sum of the absolute terms before it.
void against_double(const Case& c, const Packed& p, const std::vector<float>& x,
                    const std::vector<float>& out, const float* bias, float start) {
  const std::vector<double> exact = seen(p.weight, x);
  const auto rows = static_cast<int64_t>(x.size()) / c.k;
  const double roundings = 8.0 + static_cast<double>(weight_act(p.weight) == Act::q8 ? c.k / 8 : c.k / 4);
  std::vector<Value> row(static_cast<size_t>(c.k));
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.k; ++i) row[static_cast<size_t>(i)] = p.value(j, i);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = double{bias[j]} + double{start}, size = std::fabs(bias[j]) + std::fabs(start);
      for (int64_t i = 0; i < c.k; ++i) {
        const Value& v = row[static_cast<size_t>(i)];
        const double a = exact[static_cast<size_t>(r * c.k + i)];
        sum += (double{v.d} * double{v.q} + double{v.m}) * a;
        size += (std::fabs(double{v.d} * double{v.q}) + std::fabs(double{v.m})) * std::fabs(a);
      }
      const double error = std::fabs(double{out[static_cast<size_t>(r * (c.n + 2) + j)]} - sum);
      check(error <= roundings * 0x1p-24 * size + 1e-36, c, "not the double result", r, j);
    }
  }
}

void exact_rows(const Case& c, const Packed& p) {
  std::vector<float> got(static_cast<size_t>(c.k)), expected(static_cast<size_t>(c.k));
  for (int64_t j = 0; j < c.n; ++j) {
    weight_row(p.weight, j, got.data());
    for (int64_t i = 0; i < c.k; ++i) expected[static_cast<size_t>(i)] = p.value(j, i).value();
    bool equal = true;
    for (size_t i = 0; i < got.size(); ++i) equal = equal && got[i] == expected[i];
    check(equal, c, "weight_row is not the exact dequantised row", j);
  }
}

void batch_invariance(const Case& c, const Packed& p, const std::vector<float>& x,
                      const std::vector<float>& all, const Extras& extras) {
  const int64_t ldo = c.n + 2;
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 33, 64, 65, 99}) {
    for (const int64_t first : {int64_t{0}, (kMostRows - rows) / 2, kMostRows - rows}) {
      const Order order = first == 0 ? Order::backward : Order::forward;
      const std::vector<float> part = run(p.weight, x.data(), first, rows, order, extras);
      check(same(part.data(), &all[static_cast<size_t>(first * ldo)], rows * ldo), c,
            "a row depends on its batch", rows, first);
    }
  }
}

void one_shape(const Case& c, std::mt19937& random) {
  const Packed p(c, random);
  exact_rows(c, p);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kMostRows * c.k)), bias(static_cast<size_t>(c.n));
  for (float& v : x) v = normal(random);
  for (float& v : bias) v = normal(random);
  const Extras extras = {bias.data(), true};
  const std::vector<float> all = run(p.weight, x.data(), 0, kMostRows, Order::forward, extras);
  against_double(c, p, x, all, bias.data(), 0.5f);
  check(all == run(p.weight, x.data(), 0, kMostRows, Order::backward, extras), c, "tile order");
  check(all == run(p.weight, x.data(), 0, kMostRows, Order::threads, extras), c, "threads");
  batch_invariance(c, p, x, all, extras);

  const std::vector<float> plain = run(p.weight, x.data(), 0, 9, Order::threads);
  for (int64_t r = 0; r < 9; ++r) {
    const float* out = &plain[static_cast<size_t>(r * (c.n + 2))];
    check(std::isnan(out[c.n]) && std::isnan(out[c.n + 1]), c, "wrote past the row", r);
    check(std::none_of(out, out + c.n, [](float v) { return std::isnan(v); }), c, "unwritten", r);
  }
}

// Rows with values no model should have, between rows that must not notice.
void extremes(const Case& c, std::mt19937& random) {
  const Packed p(c, random);
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t rows = 12;
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * c.k));
  for (float& v : x) v = normal(random);
  const std::vector<float> clean = run(p.weight, x.data(), 0, rows, Order::forward);
  const auto row = [&](int64_t r) { return &x[static_cast<size_t>(r * c.k)]; };
  row(1)[c.k / 2] = nan;
  row(2)[c.k - 1] = inf;
  row(3)[0] = -inf;
  std::fill(row(4), row(4) + c.k, 0.0f);
  std::fill(row(5), row(5) + c.k, -1e-42f);
  std::fill(row(6), row(6) + c.k, std::numeric_limits<float>::max());
  row(7)[0] = std::numeric_limits<float>::max(), row(7)[1] = -row(7)[0];
  std::fill(row(8), row(8) + c.k, nan);
  const std::vector<float> got = run(p.weight, x.data(), 0, rows, Order::backward);
  for (int64_t r = 0; r < rows; ++r) {
    const float* out = &got[static_cast<size_t>(r * (c.n + 2))];
    for (int64_t j = 0; j < c.n; ++j) {
      if (r == 1 || r == 8) check(std::isnan(out[j]), c, "NaN is lost", r, j);
      if ((r == 2 || r == 3) && weight_act(p.weight) == Act::q8) {
        check(std::isnan(out[j]), c, "an infinity is lost", r, j);
      }
      if (r == 4) check(out[j] == 0.0f, c, "zeros do not give zero", r, j);
      if (r == 5) check(std::isfinite(out[j]) && std::fabs(out[j]) < 1e-30f, c, "denormals", r, j);
    }
    if (r == 0 || r > 8) {
      check(same(out, &clean[static_cast<size_t>(r * (c.n + 2))], c.n), c, "a clean row noticed", r);
    }
  }
}

void refusals() {
  Weight w;
  const Case none = {Isa::portable, Format::q4_0, 0, 0};
  for (int f = 3; f < kFormats; ++f) {
    const auto format = static_cast<Format>(f);
    const int64_t values = block_values(format);
    for (const int64_t k : {int64_t{0}, values - 1, values + 1, values / 2, -values}) {
      check(plan_weight(format, 16, k, &w) == -1, {Isa::portable, format, 16, k}, "k accepted");
    }
  }
  check(plan_weight(Format::bf16, 16, 33, &w) == -1, none, "odd k accepted");
  check(plan_weight(Format::f32, 0, 32, &w) == -1, none, "n = 0 accepted");
  check(plan_weight(static_cast<Format>(99), 16, 32, &w) == -1, none, "format 99 accepted");
}

void every_shape(Isa isa, Format format, std::mt19937& random) {
  const int64_t block = std::max<int64_t>(block_values(format), 32);
  const bool any_k = format == Format::f32 || format == Format::f16;
  const int64_t most = block == 256 ? 8 : 64;  // blocks of k = 2048
  one_shape({isa, format, 1, any_k ? 1 : format == Format::bf16 ? 2 : block}, random);
  one_shape({isa, format, 17, any_k ? 35 : format == Format::bf16 ? 34 : block}, random);
  one_shape({isa, format, 33, 3 * block + (any_k ? 7 : format == Format::bf16 ? 6 : 0)}, random);
  one_shape({isa, format, 16, 2 * block}, random);
  one_shape({isa, format, 21, most * block}, random);
  // Enough strips that a tile holds several and the last one fewer.
  one_shape({isa, format, 16 * 21 - 3, block}, random);
  extremes({isa, format, 20, 2 * block}, random);
}

}  // namespace
}  // namespace octavo

int main() {
  using namespace octavo;
  refusals();
  const auto every_format = [](Isa isa, const char* name) {
    for (int f = 0; f < kFormats; ++f) {
      std::mt19937 random(static_cast<uint32_t>(1 + f));
      every_shape(isa, static_cast<Format>(f), random);
    }
    std::printf("%-14s %d checks, %d failures\n", name, checks, failures);
  };
  for (int isa = 0; isa < kIsas; ++isa) {
    if (!isa_available(static_cast<Isa>(isa))) continue;
    select_isa(static_cast<Isa>(isa));
    check(selected_isa() == static_cast<Isa>(isa), {Isa::portable, Format::f32, 0, 0}, "isa not taken");
    every_format(static_cast<Isa>(isa), kIsaNames[isa]);
  }
#if defined(__x86_64__)
  if (isa_available(Isa::avx512_bf16)) {
    // A row must not depend on which unit computed it: from 5 rows on it is the (emulated) matrix one.
    use_kernels(kAmxEmulatedKernels);
    kernels().tile_rows() = 5;
    every_format(Isa::amx, "amx, emulated");
  }
#endif
  return failures != 0;
}
