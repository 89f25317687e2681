// What the ranks of a process share: a barrier, how far each one is, and an end within the time limit.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "names.hpp"
#include "schedule.hpp"

namespace collhub {

class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const long generation = generation_;
    if (++arrived_ == count_) {
      arrived_ = 0;
      ++generation_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return generation_ != generation; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_, arrived_ = 0;
  long generation_ = 0;
};

// Ends the process with status 3 when a rank fails or the time is over, and says which level every rank posted last.
class Watch {
 public:
  Watch(int first_rank, int ranks, double limit_s) : first_rank_(first_rank), communicators_(as_size(ranks)) {
    for (auto& communicator : communicators_) communicator = nullptr;
    guard_ = std::thread([this, limit_s] { guard(limit_s); });
  }

  ~Watch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    guard_.join();
  }

  // By its communicator the level of a rank is found; null while it has none.
  std::atomic<ncclComm_t>& communicator(int local_rank) { return communicators_[as_size(local_rank)]; }

  // Others get a moment to say their own reason.
  [[noreturn]] void fail(int local_rank, const char* reason) {
    say(local_rank, reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    stop();
  }

 private:
  void guard(double limit_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(limit_s), [this] { return is_over_; })) return;
    std::fprintf(stderr, "not done after %g seconds\n", limit_s);
    stop();
  }

  void say(int local_rank, const char* reason) {
    const std::lock_guard<std::mutex> lock(print_mutex_);
    std::fprintf(stderr, "rank %d: %s\n", first_rank_ + local_rank, reason);
  }

  [[noreturn]] void stop() {
    if (!has_stopped_.exchange(true)) {
      for (std::size_t i = 0; i < communicators_.size(); ++i)
        std::fprintf(stderr, "rank %d stands at level %d\n", first_rank_ + static_cast<int>(i), level(i));
      std::fflush(stderr);
      _exit(3);
    }
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }

  int level(std::size_t local_rank) const {
    const ncclComm_t communicator = communicators_[local_rank];
    return communicator ? COLLHUB_LEVEL(communicator) : -1;
  }

  int first_rank_;
  std::vector<std::atomic<ncclComm_t>> communicators_;
  std::mutex mutex_, print_mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::atomic<bool> has_stopped_{false};
  std::thread guard_;
};

}  // namespace collhub
