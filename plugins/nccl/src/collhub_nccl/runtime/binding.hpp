// The schedule bound to a communicator: plan, lanes and workspace, made by its first call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.cuh"
#include "lanes.hpp"
#include "places.hpp"
#include "plan.hpp"
#include "workspace.hpp"

namespace collhub {

// The caller's device is another one where a process has several.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ == device) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    is_changed_ = true;
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (is_changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool is_changed_ = false;
};

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

inline int rank_in(const Schedule& schedule, ncclComm_t communicator) {
  int ranks = 0, rank = 0;
  check(ncclCommCount(communicator, &ranks), "ncclCommCount", communicator);
  check(ncclCommUserRank(communicator, &rank), "ncclCommUserRank", communicator);
  if (ranks != schedule.ranks)
    throw Failure(ncclInvalidArgument, "the schedule has " + std::to_string(schedule.ranks) +
                                           " ranks, the communicator " + std::to_string(ranks));
  return rank;
}

inline bool has_reductions(const Schedule& schedule) {
  const Record* end = schedule.records + schedule.record_begin[schedule.ranks];
  return std::any_of(schedule.records, end, [](const Record& r) { return r.kind == kReduce; });
}

class Binding {
 public:
  Binding(const Schedule& schedule, ncclComm_t communicator, cudaStream_t stream)
      : schedule_(schedule),
        communicator_(communicator),
        rank_(rank_in(schedule, communicator)),
        reduces_(has_reductions(schedule)),
        plan_(plan_of(schedule, rank_)),
        workspace_(communicator) {
    check(ncclCommCuDevice(communicator, &device_), "ncclCommCuDevice", communicator);
    const OnDevice on_device(device_);
    if (is_capturing(stream)) refuse_capture();
    done_.reset(new Event);
    for (int lane = 1; lane < schedule.lanes; ++lane)
      lanes_.emplace_back(new Lane(communicator, rank_, schedule.lanes));
  }

  // Enqueues a call. Calls of a communicator come one after another, as NCCL demands.
  void run(const Call& given) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const OnDevice on_device(device_);
    if (!given.count) return;
    if (!runs_here(given)) return run_native(schedule_, given, 0, given.count);
    const Call call = reduces_ ? given : in_bytes(given);
    const Sizes sizes = sizes_of(schedule_, call.count, bytes_of(call.datatype));
    // The workspace serves one call after the other, on whatever streams. Within a graph its own
    // order holds, and events from outside cannot be waited for.
    const bool captures = is_capturing(call.stream);
    if (has_run_ && !captures && last_stream_ != call.stream) done_->wait(call.stream);
    if (sizes.block) run_blocks(call, sizes, captures);
    if (sizes.rest) run_native(schedule_, call, call.count - sizes.rest, sizes.rest);
    is_open_ = false;
    if (captures) return;
    done_->record(call.stream);
    last_stream_ = call.stream;
    has_run_ = true;
  }

  // The level that the last call has posted, -1 before.
  int level() const { return level_; }

  // Before the end: waits for the last call, whose memory is about to be given back. After an error
  // its work may never end, and memory and lanes are left to it.
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const OnDevice on_device(device_);
    if (is_idle()) return;
    workspace_.abandon();
    for (const auto& lane : lanes_) lane->abandon();
  }

 private:
  [[noreturn]] static void refuse_capture() {
    throw Failure(ncclInvalidUsage,
                  "memory and lanes cannot be made while a CUDA graph is captured: make a call "
                  "with this communicator and this size before");
  }

  bool is_idle() const {
    const auto deadline = std::chrono::steady_clock::now() + patience();
    while (!is_open_) {
      if (!has_run_ || done_->is_reached()) return true;
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError", communicator_);
      const bool is_healthy = state == ncclSuccess || state == ncclInProgress;
      if (!is_healthy || std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }

  bool runs_here(const Call& call) const {
    if (!reduces_) return true;
    if (call.op == ncclAvg && !schedule_.is_reducing)
      throw Failure(ncclInvalidArgument, "this collective does not reduce over all ranks");
    return is_reducible(call.datatype, call.op);
  }

  // What is only moved has no type, and more sizes are whole blocks.
  static Call in_bytes(Call call) {
    call.count = product(call.count, bytes_of(call.datatype));
    call.datatype = ncclUint8;
    call.op = ncclSum;
    return call;
  }

  void run_blocks(const Call& call, const Sizes& sizes, bool captures) {
    Places places(schedule_, rank_, plan_, call, sizes);
    const std::size_t bytes = places.workspace_bytes();
    if (captures && !workspace_.has(bytes)) refuse_capture();
    places.use(workspace_.at_least(bytes));
    // Left by an error from here on, some of the call is enqueued.
    is_open_ = true;
    places.copy_in(call.stream);
    with_type(call.datatype, [&](auto element) {
      with_op(call.op, [&](auto op) {
        run_stages<decltype(element), decltype(op)>(call, places, sizes.block);
      });
    });
    places.copy_out(call.stream);
  }

  template <class T, class Op>
  void run_stages(const Call& call, const Places& places, std::size_t block) {
    auto stage = plan_.stages.begin();
    // What comes before all messages may write for several lanes.
    for (; stage != plan_.stages.end() && stage->level == 0; ++stage)
      run_stage<T, Op>(*stage, call, places, block);
    Forked forked(lanes_, call.stream);
    for (; stage != plan_.stages.end(); ++stage) run_stage<T, Op>(*stage, call, places, block);
    forked.join();
    if (call.op == ncclAvg) divide<T>(places, block, call.stream);
  }

  template <class T, class Op>
  void run_stage(const Stage& stage, const Call& call, const Places& places, std::size_t block) {
    level_ = stage.level;
    const bool is_first = stage.lane == 0;
    const ncclComm_t communicator = is_first ? communicator_ : lane_of(stage).communicator();
    const cudaStream_t stream = is_first ? call.stream : lane_of(stage).stream();
    if (stage.has_messages())
      exchange<T>(stage, places, block, call.datatype, communicator, stream);
    for (const Batch& batch : stage.batches)
      check(launch_batch<T, Op>(placed<T>(batch, places, block), stream), "reduction");
  }

  const Lane& lane_of(const Stage& stage) const { return *lanes_[as_size(stage.lane - 1)]; }

  // All messages of a stage are one group: only then no order of them can block.
  template <class T>
  static void exchange(const Stage& stage, const Places& places, std::size_t block,
                       ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
    Group group;
    for (const Record* record = stage.first_message; record != stage.last_message; ++record) {
      const std::size_t count = as_size(record->count) * block;
      const bool is_send = record->kind == kSend;
      const int buffer = is_send ? record->source_buffer : record->target_buffer;
      const auto offset = is_send ? record->source_offset : record->target_offset;
      T* memory = element<T>(places, buffer, offset, block);
      const auto result =
          is_send ? ncclSend(memory, count, type, record->peer, communicator, stream)
                  : ncclRecv(memory, count, type, record->peer, communicator, stream);
      check_posted(result, is_send ? "ncclSend" : "ncclRecv", communicator);
    }
    group.end(communicator);
  }

  template <class T>
  static DeviceBatch<T> placed(const Batch& batch, const Places& places, std::size_t block) {
    DeviceBatch<T> found;
    for (const Job& job : batch) {
      DeviceJob<T>& own = found.jobs[found.size++];
      own.target = element<T>(places, job.target.buffer, job.target.offset, block);
      own.reads_target = job.reads_target;
      own.count = as_size(job.target.count) * block;
      own.source_count = 0;
      for (const Region& source : job.sources)
        own.sources[own.source_count++] = element<T>(places, source.buffer, source.offset, block);
      own.head = head_of(own);
    }
    return found;
  }

  template <class T>
  static T* element(const Places& places, int buffer, std::int64_t offset, std::size_t block) {
    return reinterpret_cast<T*>(places.buffer(buffer)) + as_size(offset) * block;
  }

  template <class T>
  void divide(const Places& places, std::size_t block, cudaStream_t stream) const {
    T* output = element<T>(places, kOutput, 0, block);
    const std::size_t count = as_size(schedule_.memory[rank_].size[kOutput]) * block;
    if (places.has_result())
      check(launch_divide<T>(output, count, schedule_.ranks, stream), "division");
  }

  const Schedule& schedule_;
  ncclComm_t communicator_;
  int rank_;
  bool reduces_;
  Plan plan_;
  int device_ = 0;
  std::mutex mutex_;
  std::atomic<int> level_{-1};
  Workspace workspace_;
  Forked::Lanes lanes_;
  std::unique_ptr<Event> done_;
  cudaStream_t last_stream_ = nullptr;
  bool has_run_ = false;
  bool is_open_ = false;
};

}  // namespace collhub
