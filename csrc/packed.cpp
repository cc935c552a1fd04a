#include "packed.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace octavo {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;
constexpr uint64_t kPrime = 0x9E3779B185EBCA87u;

uint64_t mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * kPrime;
  return sum ^ sum >> 29;
}

// Eight sums over every eighth word, so that the multiplications overlap.
uint64_t piece_sum(const uint8_t* data, int64_t bytes) {
  uint64_t lanes[8];
  for (uint64_t i = 0; i < 8; ++i) lanes[i] = i * kPrime;
  int64_t at = 0;
  for (; at + 64 <= bytes; at += 64) {
    uint64_t words[8];
    std::memcpy(words, data + at, 64);
    for (int i = 0; i < 8; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  uint64_t sum = static_cast<uint64_t>(bytes);
  for (; at < bytes; ++at) sum = mixed(sum, data[at]);
  for (const uint64_t lane : lanes) sum = mixed(sum, lane);
  return sum;
}

struct Job {
  uint8_t* data;
  int64_t bytes;
  int fd;  // −1: the data is there already
  int64_t offset;
  std::vector<uint64_t> sums;
  std::atomic<int64_t> next{0};
  std::atomic<int> error{0};

  bool read_piece(int64_t begin, int64_t end) {
    while (begin < end) {
      const ssize_t got = pread(fd, data + begin, static_cast<size_t>(end - begin), offset + begin);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        error = got < 0 ? errno : -1;
        return false;
      }
      begin += got;
    }
    return true;
  }
};

void work(void* context, int) {
  Job& job = *static_cast<Job*>(context);
  const auto pieces = static_cast<int64_t>(job.sums.size());
  for (int64_t i; (i = job.next.fetch_add(1)) < pieces && job.error == 0;) {
    const int64_t begin = i * kPiece, end = std::min(begin + kPiece, job.bytes);
    if (job.fd >= 0 && !job.read_piece(begin, end)) return;
    job.sums[static_cast<size_t>(i)] = piece_sum(job.data + begin, end - begin);
  }
}

uint64_t run(Team& team, uint8_t* data, int64_t bytes, int fd, int64_t offset) {
  Job job;
  job.data = data;
  job.bytes = bytes;
  job.fd = fd;
  job.offset = offset;
  job.sums.resize(static_cast<size_t>((bytes + kPiece - 1) / kPiece));
  team.run(work, &job);
  if (job.error != 0) {
    throw std::runtime_error(job.error < 0 ? "the file ends early" : std::strerror(job.error));
  }
  return piece_sum(reinterpret_cast<const uint8_t*>(job.sums.data()),
                   static_cast<int64_t>(job.sums.size() * sizeof(uint64_t)));
}

}  // namespace

uint64_t checksum(Team& team, const uint8_t* data, int64_t bytes) {
  return run(team, const_cast<uint8_t*>(data), bytes, -1, 0);
}

uint64_t read_packed(Team& team, int fd, int64_t offset, uint8_t* data, int64_t bytes) {
  return run(team, data, bytes, fd, offset);
}

}  // namespace octavo
