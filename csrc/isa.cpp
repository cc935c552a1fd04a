#include "linear.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {

#if defined(__x86_64__)

namespace {

// Register state that the operating system saves (XCR0).
uint64_t saved_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool has(uint32_t word, int bit) { return word >> bit & 1u; }

}  // namespace

Isa detect_isa() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::portable;
  const bool osxsave = has(c, 27), avx = has(c, 28), fma = has(c, 12), f16c = has(c, 29);
  if (!osxsave || !avx || !fma || !f16c) return Isa::portable;
  const uint64_t state = saved_state();
  if ((state & 0x6) != 0x6) return Isa::portable;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, 5)) return Isa::portable;
  const bool wide = has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31) && has(c, 11);
  if (!wide || (state & 0xE0) != 0xE0) return Isa::avx2;
  const bool more = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
  return more && has(a, 5) ? Isa::avx512_bf16 : Isa::avx512;
}

#else

Isa detect_isa() { return Isa::portable; }

#endif

}  // namespace octavo
