// A persistent team of compute threads. The caller is thread 0.
//
// Waiting spins for a bounded time (a step's barriers are microseconds apart) and then sleeps in
// the kernel, so an idle team costs nothing and a core taken by someone else stalls only its work.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace octavo {

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits until `word` differs from `seen`.
inline void wait_change(const std::atomic<uint32_t>& word, uint32_t seen) {
  for (int i = 0; i < 4000; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    cpu_pause();
  }
  word.wait(seen, std::memory_order_acquire);
}

class Barrier {
 public:
  explicit Barrier(uint32_t threads) : threads_(threads) {}

  void arrive_and_wait() {
    if (threads_ == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
    } else {
      wait_change(phase_, phase);
    }
  }

 private:
  const uint32_t threads_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

class Team {
 public:
  using Work = void (*)(void* context, int thread);

  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Runs work(context, t) on every thread t of the team and returns when all are done. Only one
  // thread may call it at a time.
  void run(Work work, void* context);
  // For use inside `work`.
  void barrier() { barrier_.arrive_and_wait(); }

 private:
  void loop(int thread);

  Barrier barrier_;
  Work work_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::vector<std::thread> workers_;
};

}  // namespace octavo
