// The streams and communicators of a binding: lanes run beside each other, calls one after another.
#pragma once

#include <vector>

#include "calls.hpp"
#include "schedule.hpp"

namespace collhub {

// NCCL's kernels use at most so many thread blocks: those of all lanes fit the device together,
// or two ranks could wait for lanes that the other one has no room for.
constexpr int kMostThreadBlocks = 32;

class Event {
 public:
  Event() {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  // What is put on `later` from now on waits for all that is on `earlier` now.
  void order(cudaStream_t earlier, cudaStream_t later) const {
    record(earlier);
    wait(later);
  }
  void record(cudaStream_t stream) const {
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void wait(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  bool is_reached() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result != cudaErrorNotReady) check(result, "cudaEventQuery");
    return result == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// A further lane: a communicator of the same ranks, so that its messages pair among themselves,
// and a stream of its own.
class Lane {
 public:
  Lane(ncclComm_t communicator, int rank, int lanes) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.splitShare = 1;
    config.maxCTAs = kMostThreadBlocks / lanes;
    const ncclResult_t result = ncclCommSplit(communicator, 0, rank, &communicator_, &config);
    finish(result, "ncclCommSplit", communicator);
    finish(settled(communicator_), "ncclCommSplit", communicator_);
    const auto created = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    check(created, "cudaStreamCreateWithFlags");
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() {
    cudaStreamDestroy(stream_);
    if (is_abandoned_) ncclCommAbort(communicator_);
    else ncclCommDestroy(communicator_);
  }

  // Its work may never end: destroying the communicator would wait for it.
  void abandon() { is_abandoned_ = true; }

  ncclComm_t communicator() const { return communicator_; }
  cudaStream_t stream() const { return stream_; }
  void fork(cudaStream_t stream) const { event_.order(stream, stream_); }
  void join(cudaStream_t stream) const { event_.order(stream_, stream); }

 private:
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Event event_;
  bool is_abandoned_ = false;
};

// Lanes between fork and join. Left by an error they are joined too: what they hold already must
// not run on beside later work of the caller's stream, and a capture must get its streams back.
class Forked {
 public:
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  Forked(const Lanes& lanes, cudaStream_t stream) : lanes_(lanes), stream_(stream) {
    for (const auto& lane : lanes_) lane->fork(stream_);
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;
  ~Forked() {
    if (!is_open_) return;
    try {
      join();
    } catch (const Failure&) {
      // The first error is on its way to the caller.
    }
  }

  void join() {
    is_open_ = false;
    for (const auto& lane : lanes_) lane->join(stream_);
  }

 private:
  const Lanes& lanes_;
  cudaStream_t stream_;
  bool is_open_ = true;
};

}  // namespace collhub
