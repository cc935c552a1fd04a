// What the machine can do at best, measured: the figures that every other figure is a share of.
#pragma once
#include <cstdint>

namespace octavo {

// Bytes per second that `threads` threads read from `bytes` on huge pages; best of several passes.
double read_bandwidth(int threads, int64_t bytes);

// int8 multiply-adds, times two, per second of `threads` threads of the selected instruction set.
double matrix_rate(int threads);

}  // namespace octavo
