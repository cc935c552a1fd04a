// Loops that must be unrolled, not left to the compiler.
#pragma once
#include <type_traits>
#include <utility>

namespace octavo {
namespace {

#define OCTAVO_INLINE inline __attribute__((always_inline))

// f(0), f(1) … f(N − 1) with constant arguments. A loop would leave the unrolling to the compiler;
// where it doesn't, arrays of accumulators live in memory and the kernel takes twice the time.
template <int N, class Function>
OCTAVO_INLINE void unrolled(Function&& f) {
  [&]<int... Index>(std::integer_sequence<int, Index...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, Index>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

}  // namespace
}  // namespace octavo
