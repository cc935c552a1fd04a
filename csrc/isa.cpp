#include "linear.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
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

// Asks the kernel for the tiles' register state, once for all threads of the process; false where
// it is refused or not known.
bool tiles_permitted() {
#if defined(__linux__)
  constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
  return false;
#endif
}

bool has(uint32_t word, int bit) { return word >> bit & 1u; }

}  // namespace

namespace {

Isa find_isa() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::portable;
  const bool osxsave = has(c, 27), avx = has(c, 28), fma = has(c, 12), f16c = has(c, 29);
  if (!osxsave || !avx || !fma || !f16c) return Isa::portable;
  const uint64_t state = saved_state();
  if ((state & 0x6) != 0x6) return Isa::portable;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, 5)) return Isa::portable;
  const bool wide = has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31) && has(c, 11);
  if (!wide || (state & 0xE0) != 0xE0) return Isa::avx2;
  const bool tiles = has(d, 22) && has(d, 24) && has(d, 25);  // bf16, tile, int8
  const bool more = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
  if (!more || !has(a, 5)) return Isa::avx512;
  return tiles && (state & 0x60000) == 0x60000 && tiles_permitted() ? Isa::amx : Isa::avx512_bf16;
}

}  // namespace

Isa detect_isa() {
  static const Isa best = find_isa();
  return best;
}

bool isa_available(Isa isa) { return isa <= detect_isa(); }

#else

Isa detect_isa() {
#if defined(__aarch64__) && defined(__linux__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) return Isa::neon;
#elif defined(__aarch64__) && defined(__APPLE__)
  return Isa::neon;  // every one has it
#endif
  return Isa::portable;
}

bool isa_available(Isa isa) { return isa == Isa::portable || isa == detect_isa(); }

#endif

}  // namespace octavo
