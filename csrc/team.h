// A persistent team of compute threads. The caller is thread 0.
//
// Threads meet only where a job begins and ends. Inside, work lies in stages that anybody may finish
// (see Stage), so a thread whose core the system has taken away holds up the others for no more than
// the piece it was at. Waiting spins for a bounded time and then sleeps in the kernel: an idle team
// costs nothing, and a core that waits is free for whoever is missing.
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

constexpr int kSpins = 4000;  // pauses, of 10 to 40 ns each

// Waits until done(word's value).
template <class Done>
void wait_until(const std::atomic<uint32_t>& word, Done&& done) {
  for (;;) {
    uint32_t seen;
    for (int i = 0; i < kSpins; ++i) {
      seen = word.load(std::memory_order_acquire);
      if (done(seen)) return;
      cpu_pause();
    }
    word.wait(seen, std::memory_order_acquire);
  }
}

// Pieces of work [0, total) that threads claim, and how many of them are done. The pieces of the next
// stage may begin when all of this one's are done, whoever did them.
struct alignas(64) Stage {
  std::atomic<int64_t> claim{0};
  alignas(64) std::atomic<uint32_t> done{0};  // its own line: who waits must not slow the claims

  void reset() {
    claim.store(0, std::memory_order_relaxed);
    done.store(0, std::memory_order_relaxed);
  }
  // After claiming until nothing was left: books `mine` pieces as done and waits for the others'.
  void finish(uint32_t mine, uint32_t total) {
    if (mine > 0 && done.fetch_add(mine, std::memory_order_acq_rel) + mine == total) {
      done.notify_all();
      return;
    }
    wait_until(done, [total](uint32_t value) { return value == total; });
  }
};

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
      wait_until(phase_, [phase](uint32_t value) { return value != phase; });
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
