// Packed weights as one file, read straight into the memory they are used from.
#pragma once
#include <cstdint>

#include "team.h"

namespace octavo {

// A 64-bit sum that sees any changed, missing or moved 8 bytes; against damage, not against malice.
// The same for the same bytes whatever the number of threads.
uint64_t checksum(Team& team, const uint8_t* data, int64_t bytes);

// Reads `bytes` at `offset` of the open file into `data`, all threads at once, and sums them.
// Throws std::runtime_error if the file cannot be read or ends early.
uint64_t read_packed(Team& team, int fd, int64_t offset, uint8_t* data, int64_t bytes);

}  // namespace octavo
