// One anonymous mapping per owner, on huge pages where the system gives them. A mapping is zero and
// takes no memory until it is written.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace octavo {

class Region {
 public:
  static constexpr int64_t kHuge = int64_t{2} << 20;

  Region() = default;
  explicit Region(int64_t bytes) : bytes_(round_up(bytes)) {
    if (bytes_ == 0) return;
    // Room to start at a multiple of a huge page.
    mapped_bytes_ = static_cast<size_t>(bytes_ + kHuge);
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
      mapping_ = nullptr;
      throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<uint8_t*>((address + kHuge - 1) / kHuge * kHuge);
    madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
  }
  ~Region() {
    if (mapping_) munmap(mapping_, mapped_bytes_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  static int64_t round_up(int64_t bytes) { return (bytes + kHuge - 1) / kHuge * kHuge; }

  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace octavo
