#include "team.h"

#include <csignal>

namespace octavo {

Team::Team(int threads) : barrier_(static_cast<uint32_t>(threads)) {
  // Signals belong to the process's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int t = 1; t < threads; ++t) workers_.emplace_back(&Team::loop, this, t);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Team::~Team() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Team::run(Work work, void* context) {
  work_ = work;
  context_ = context;
  if (!workers_.empty()) {
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }
  work(context, 0);
  barrier_.arrive_and_wait();
}

void Team::loop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    wait_until(generation_, [seen](uint32_t value) { return value != seen; });
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    work_(context_, thread);
    barrier_.arrive_and_wait();
  }
}

}  // namespace octavo
