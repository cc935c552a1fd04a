// From a checkpoint's block formats to strips. The formats' facts (field order, nibble order, the
// K-quants' 6-bit scales) are GGML's; see octavo/weights/quant.py for the same in numpy.
#include <cstring>

#include "half.h"
#include "layout.h"

namespace octavo {
namespace {

struct FormatInfo {
  int32_t layout;
  int64_t block, bytes;  // values and bytes of a source block
};

FormatInfo info(Format f) {
  switch (f) {
    case Format::f32: return {kF32, 1, 4};
    case Format::f16: return {kF16, 1, 2};
    case Format::bf16: return {kBF16, 2, 4};
    case Format::q4_0: return {kU4F16, 32, 18};
    case Format::q4_1: return {kU4mF16, 32, 20};
    case Format::q5_0: return {kS8F16, 32, 22};
    case Format::q5_1: return {kU8mF16, 32, 24};
    case Format::q8_0: return {kS8F16, 32, 34};
    case Format::q4_k: return {kU4mF32, 256, 144};
    case Format::q5_k: return {kU8mF32, 256, 176};
    case Format::q6_k: return {kS8hF32, 256, 210};
  }
  return {-1, 0, 0};
}

uint16_t u16_at(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// 32 values of one row: what every quantised source is brought to before it is laid out.
struct Block {
  uint8_t codes[32];  // as stored: 4-bit codes, or 8-bit (+128 where signed)
  uint16_t half_scale, half_min;
  float scale, second;  // second: −min, or the second half's scale
};

void nibbles(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = static_cast<uint8_t>(q[i] >> 4);
  }
}

void five_bits(const uint8_t* high, const uint8_t* q, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  nibbles(q, codes);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1u) << 4);
}

// Scale and min of sub-block j (0..7) from the 12 packed bytes of a K-quant.
void k_scale_min(const uint8_t* s, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6) << 4);
  }
}

void k_scales(const uint8_t* p, int j, Block* out) {
  uint8_t scale, min;
  k_scale_min(p + 4, j, &scale, &min);
  out->scale = half_to_float(u16_at(p)) * static_cast<float>(scale);
  out->second = -(half_to_float(u16_at(p + 2)) * static_cast<float>(min));
}

// Values [256·i + 32·j, + 32) of a row in a 256-value block at p; j is 0 for 32-value blocks.
void read_block(Format f, const uint8_t* p, int j, Block* out) {
  switch (f) {
    case Format::q4_0:
      out->half_scale = u16_at(p);
      return nibbles(p + 2, out->codes);
    case Format::q4_1:
      out->half_scale = u16_at(p);
      out->half_min = u16_at(p + 2);
      return nibbles(p + 4, out->codes);
    case Format::q5_0:
      out->half_scale = u16_at(p);
      five_bits(p + 2, p + 6, out->codes);
      for (uint8_t& c : out->codes) c = static_cast<uint8_t>(c - 16 + 128);
      return;
    case Format::q5_1:
      out->half_scale = u16_at(p);
      out->half_min = u16_at(p + 2);
      return five_bits(p + 4, p + 8, out->codes);
    case Format::q8_0:
      out->half_scale = u16_at(p);
      for (int i = 0; i < 32; ++i) out->codes[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80);
      return;
    case Format::q4_k:
    case Format::q5_k: {
      k_scales(p, j, out);
      const bool five = f == Format::q5_k;
      const uint8_t* q = p + (five ? 48 : 16) + 32 * (j / 2);
      for (int i = 0; i < 32; ++i) {
        uint8_t code = j % 2 ? static_cast<uint8_t>(q[i] >> 4) : q[i] & 15;
        if (five) code |= static_cast<uint8_t>((p[16 + i] >> j & 1) << 4);
        out->codes[i] = code;
      }
      return;
    }
    case Format::q6_k: {
      // 128 low-nibble bytes, 64 high-bit bytes, 16 int8 scales (one per 16 values), d.
      const int half = j / 4, quarter = j % 4;
      const uint8_t* low = p + 64 * half + 32 * (quarter % 2);
      const uint8_t* high = p + 128 + 32 * half;
      for (int i = 0; i < 32; ++i) {
        const int l = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        const int h = high[i] >> (2 * quarter) & 3;
        out->codes[i] = static_cast<uint8_t>((l | h << 4) - 32 + 128);
      }
      const float d = half_to_float(u16_at(p + 208));
      const auto* scales = reinterpret_cast<const int8_t*>(p + 192) + 2 * j;
      out->scale = d * static_cast<float>(scales[0]);
      out->second = d * static_cast<float>(scales[1]);
      return;
    }
    default: return;
  }
}

void write_block(int32_t layout, const Block& b, int64_t row, uint8_t* unit) {
  if (is_u4(layout)) {
    for (int i = 0; i < 16; ++i) {
      unit[64 * (i / 4) + 4 * row + i % 4] = static_cast<uint8_t>(b.codes[i] | b.codes[i + 16] << 4);
    }
    unit += 256;
  } else {
    for (int i = 0; i < 32; ++i) unit[64 * (i / 4) + 4 * row + i % 4] = b.codes[i];
    unit += 512;
  }
  const bool wide = layout == kU4mF32 || layout == kU8mF32 || layout == kS8hF32;
  if (wide) {
    std::memcpy(unit + 4 * row, &b.scale, 4);
    std::memcpy(unit + 64 + 4 * row, &b.second, 4);
  } else {
    std::memcpy(unit + 2 * row, &b.half_scale, 2);
    if (layout == kU4mF16 || layout == kU8mF16) std::memcpy(unit + 32 + 2 * row, &b.half_min, 2);
  }
}

void pack_quantised(Weight& w, const FormatInfo& f, const uint8_t* src, int64_t strip) {
  uint8_t* out = w.data + strip * strip_bytes(w.layout, w.k);
  const int64_t row_bytes = w.k / f.block * f.bytes;
  const int64_t per_source = f.block / kBlock;
  for (int64_t row = 0; row < kStrip; ++row) {
    const int64_t n = strip * kStrip + row;
    for (int64_t b = 0; b < w.k / kBlock; ++b) {
      Block block{};
      if (n < w.n) {
        const uint8_t* p = src + n * row_bytes + b / per_source * f.bytes;
        read_block(w.format, p, static_cast<int>(b % per_source), &block);
      }
      write_block(w.layout, block, row, out + b * unit_bytes(w.layout));
    }
  }
}

// Units of one value, bf16 of two: [unit][row].
void pack_floats(Weight& w, const FormatInfo& f, const uint8_t* src, int64_t strip) {
  uint8_t* out = w.data + strip * strip_bytes(w.layout, w.k);
  const int64_t units = w.k / f.block, size = f.bytes;
  for (int64_t row = 0; row < kStrip; ++row) {
    const int64_t n = strip * kStrip + row;
    for (int64_t u = 0; u < units; ++u) {
      uint8_t* to = out + (u * kStrip + row) * size;
      if (n < w.n) {
        std::memcpy(to, src + (n * units + u) * size, static_cast<size_t>(size));
      } else {
        std::memset(to, 0, static_cast<size_t>(size));
      }
    }
  }
}

// A quantised row back to floats, by the formulas in layout.h.
void quantised_row(const Weight& w, const uint8_t* strip, int64_t row, float* out) {
  const bool u4 = is_u4(w.layout);
  for (int64_t b = 0; b < w.k / kBlock; ++b, out += kBlock) {
    const uint8_t* unit = strip + b * unit_bytes(w.layout);
    const uint8_t* q = unit + (u4 ? 256 : 512);
    int code[32];
    for (int i = 0; i < 32; ++i) {
      if (u4) {
        const uint8_t both = unit[64 * (i % 16 / 4) + 4 * row + i % 4];
        code[i] = i < 16 ? both & 15 : both >> 4;
      } else {
        code[i] = unit[64 * (i / 4) + 4 * row + i % 4];
      }
    }
    float wide[2];
    const bool f32 = w.layout == kU4mF32 || w.layout == kU8mF32 || w.layout == kS8hF32;
    if (f32) {
      std::memcpy(&wide[0], q + 4 * row, 4);
      std::memcpy(&wide[1], q + 64 + 4 * row, 4);
    }
    const float d = f32 ? wide[0] : half_to_float(u16_at(q + 2 * row));
    switch (w.layout) {
      case kU4F16:
        for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code[i] - 8);
        break;
      case kS8F16:
        for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code[i] - 128);
        break;
      case kS8hF32:
        for (int i = 0; i < 32; ++i) out[i] = wide[i / 16] * static_cast<float>(code[i] - 128);
        break;
      default: {
        const float min = f32 ? wide[1] : half_to_float(u16_at(q + 32 + 2 * row));
        for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code[i]) + min;
      }
    }
  }
}

}  // namespace

int plan_weight(Format format, int64_t n, int64_t k, Weight* w) {
  const FormatInfo f = info(format);
  if (f.layout < 0 || n < 1 || k < 1 || k % f.block != 0) return -1;
  const int64_t strips = (n + kStrip - 1) / kStrip;
  *w = {format, f.layout, n, k, strips * strip_bytes(f.layout, k), nullptr};
  return 0;
}

int64_t weight_strips(const Weight& w) { return (w.n + kStrip - 1) / kStrip; }

void pack_weight(Weight& w, const uint8_t* src, int64_t s0, int64_t s1) {
  const FormatInfo f = info(w.format);
  for (int64_t s = s0; s < s1; ++s) {
    if (is_float(w.layout)) {
      pack_floats(w, f, src, s);
    } else {
      pack_quantised(w, f, src, s);
    }
  }
}

void weight_row(const Weight& w, int64_t row, float* out) {
  const uint8_t* strip = w.data + row / kStrip * strip_bytes(w.layout, w.k);
  const int64_t lane = row % kStrip;
  if (!is_float(w.layout)) return quantised_row(w, strip, lane, out);
  for (int64_t k = 0; k < w.k; ++k) {
    if (w.layout == kF32) {
      std::memcpy(out + k, strip + 4 * (k * kStrip + lane), 4);
    } else if (w.layout == kF16) {
      out[k] = half_to_float(u16_at(strip + 2 * (k * kStrip + lane)));
    } else {
      out[k] = bf16_to_float(u16_at(strip + 4 * (k / 2 * kStrip + lane) + 2 * (k % 2)));
    }
  }
}

}  // namespace octavo
