// Stands in for NCCL where there is no GPU: ranks are threads, messages are copies, and the rules
// are stricter than NCCL's.
//
// A group posts all its operations and ends when all are done. A send ends only when it is
// received; messages of one (source, destination) pair match in order; count and type must be equal
// at both ends; no two operations of a group may touch the same memory unless both only read it.
// What waits longer than COLLHUB_DOUBLE_TIMEOUT_S (20 seconds) fails and says for whom. A call on a
// non-blocking communicator that is still in progress is an error.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "elements.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Message {
  const void* source;
  std::size_t count;
  ncclDataType_t type;
  bool is_taken = false;  // a receiver reads the source
  bool is_done = false;
};

struct Share {
  const void* source;
  void* target;
};

// What the ranks of one communicator share.
struct World {
  explicit World(int size) : ranks(size), shares(size) {}

  int ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> queues;  // by (source, destination)
  std::vector<Share> shares;
  int arrived = 0;
  long generation = 0;
  int attached = 0;
  bool has_failed = false;
};

struct Operation {
  bool is_send;
  int peer;
  void* memory;
  std::size_t count;
  ncclDataType_t type;
  ncclComm* communicator;
  cudaStream_t stream;
  std::shared_ptr<Message> message;  // of a send, once posted
  bool is_done = false;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
int last_id = 0;

thread_local int group_depth = 0;
thread_local ncclResult_t group_error = ncclSuccess;
thread_local std::vector<Operation> group;
thread_local std::string last_error;
thread_local std::map<std::string, int> calls_made;
thread_local std::map<std::string, std::pair<int, ncclResult_t>> failures_wanted;

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

std::chrono::duration<double> time_limit() {
  const char* text = std::getenv("COLLHUB_DOUBLE_TIMEOUT_S");
  return std::chrono::duration<double>(text ? std::atof(text) : 20.0);
}

ncclResult_t fail(ncclResult_t result, const std::string& message) {
  last_error = message;
  return result;
}

// How ids of this process begin: ranks of others cannot be reached.
std::string own_ids() { return "double " + std::to_string(getpid()) + " "; }

// Counts a call, and fails it where a test wants that.
ncclResult_t called(const char* name) {
  ++calls_made[name];
  const auto wanted = failures_wanted.find(name);
  if (wanted == failures_wanted.end() || wanted->second.first--) return ncclSuccess;
  const ncclResult_t result = wanted->second.second;
  failures_wanted.erase(wanted);
  return fail(result, std::string(name) + " fails as the test wants it");
}

}  // namespace

struct ncclComm {
  ncclComm(std::shared_ptr<World> of, int own_rank, bool blocks, std::string name)
      : world(std::move(of)), rank(own_rank), is_blocking(blocks), id(std::move(name)) {}

  std::shared_ptr<World> world;
  int rank;
  bool is_blocking;
  std::string id;
  int splits = 0;
  int open_polls = 0;  // times that a non-blocking call still says that it is in progress
  std::future<ncclResult_t> running;  // of a non-blocking call
  std::mutex mutex;
  ncclResult_t state = ncclSuccess;
  std::string error;

  void note(ncclResult_t result) {
    const std::lock_guard<std::mutex> lock(mutex);
    state = result;
    error = last_error;
  }
};

namespace {

// Whether a communicator can take a call: NCCL forbids it while another one is in progress.
ncclResult_t ready(ncclComm* communicator) {
  if (!communicator) return fail(ncclInvalidArgument, "no communicator");
  if (communicator->open_polls || communicator->running.valid())
    return fail(ncclInvalidUsage, "a call on a communicator that is in progress");
  return ncclSuccess;
}

// Runs what a communicator has to do on a stream: at once, when the stream comes to it, or, where
// the communicator does not block, beside the caller.
ncclResult_t start(ncclComm* communicator, cudaStream_t stream,
                   std::function<ncclResult_t()> work) {
  if (cudaDoubleIsAsync(stream)) {
    cudaDoubleEnqueue(stream, [communicator, work] {
      const ncclResult_t result = work();
      if (result == ncclSuccess) return cudaSuccess;
      communicator->note(result);
      return cudaErrorLaunchFailure;
    });
    if (communicator->is_blocking) return ncclSuccess;
    communicator->open_polls = 3;
    return ncclInProgress;
  }
  if (communicator->is_blocking) return work();
  communicator->running = std::async(std::launch::async, [communicator, work] {
    const ncclResult_t result = work();
    if (result != ncclSuccess) communicator->note(result);
    return result;
  });
  return ncclInProgress;
}

std::string title(const Operation& operation) {
  return std::string(operation.is_send ? "the send to" : "the receive from") + " rank " + std::to_string(operation.peer) +
         " of " + std::to_string(operation.count) + " elements";
}

// The operations of one group of one thread, on one communicator.
class Exchange {
 public:
  Exchange(ncclComm* communicator, std::vector<Operation> operations)
      : world_(*communicator->world), rank_(communicator->rank), operations_(std::move(operations)) {}

  ncclResult_t run() {
    if (const ncclResult_t result = check_overlaps(); result != ncclSuccess) return failed(result);
    std::unique_lock<std::mutex> lock(world_.mutex);
    post_sends();
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(time_limit());
    while (!is_done()) {
      ncclResult_t result = ncclSuccess;
      if (receive_one(lock, result)) {
        if (result != ncclSuccess) return stop(lock, result);
        continue;
      }
      if (is_done()) break;
      if (world_.has_failed) return stop(lock, fail(ncclRemoteError, "another rank failed while " + waiting()));
      if (world_.changed.wait_until(lock, deadline) == std::cv_status::timeout && !can_go_on())
        return stop(lock, fail(ncclTimeout, "deadlock: " + waiting()));
    }
    return ncclSuccess;
  }

 private:
  ncclResult_t failed(ncclResult_t result) {
    std::unique_lock<std::mutex> lock(world_.mutex);
    return stop(lock, result);
  }

  // The caller may free its memory at once: what nobody reads yet is withdrawn, what is being read is awaited.
  ncclResult_t stop(std::unique_lock<std::mutex>& lock, ncclResult_t result) {
    world_.has_failed = true;
    for (const Operation& operation : operations_) {
      if (!operation.message) continue;
      auto& queue = world_.queues[{rank_, operation.peer}];
      queue.erase(std::remove(queue.begin(), queue.end(), operation.message), queue.end());
    }
    world_.changed.notify_all();
    world_.changed.wait(lock, [this] {
      return std::none_of(operations_.begin(), operations_.end(), [](const Operation& operation) {
        return operation.message && operation.message->is_taken && !operation.message->is_done;
      });
    });
    return result;
  }

  ncclResult_t check_overlaps() {
    std::vector<const Operation*> sorted;
    for (const Operation& operation : operations_)
      if (operation.count) sorted.push_back(&operation);
    std::sort(sorted.begin(), sorted.end(), [](auto* one, auto* other) { return one->memory < other->memory; });
    const Operation *reaching = nullptr, *writing = nullptr;  // those that end last so far, of all and of the receives
    for (const Operation* operation : sorted) {
      const Operation* before = operation->is_send ? writing : reaching;
      if (before && end_of(*before) > static_cast<const char*>(operation->memory))
        return fail(ncclInvalidUsage, title(*operation) + " and " + title(*before) + " touch the same memory in one group");
      if (!reaching || end_of(*operation) > end_of(*reaching)) reaching = operation;
      if (!operation->is_send && (!writing || end_of(*operation) > end_of(*writing))) writing = operation;
    }
    return ncclSuccess;
  }

  static const char* end_of(const Operation& operation) {
    return static_cast<const char*>(operation.memory) + operation.count * bytes_of(operation.type);
  }

  void post_sends() {
    for (Operation& operation : operations_) {
      if (!operation.is_send) continue;
      operation.message = std::make_shared<Message>(Message{operation.memory, operation.count, operation.type});
      world_.queues[{rank_, operation.peer}].push_back(operation.message);
    }
    world_.changed.notify_all();
  }

  bool is_done() {
    return std::all_of(operations_.begin(), operations_.end(), [](const Operation& operation) {
      return operation.is_send ? operation.message->is_done : operation.is_done;
    });
  }

  // The first receive of every peer can take the first message of that peer.
  Operation* next_receive() {
    std::vector<int> blocked;
    for (Operation& operation : operations_) {
      if (operation.is_send || operation.is_done) continue;
      if (std::find(blocked.begin(), blocked.end(), operation.peer) != blocked.end()) continue;
      if (!world_.queues[{operation.peer, rank_}].empty()) return &operation;
      blocked.push_back(operation.peer);
    }
    return nullptr;
  }

  bool can_go_on() { return is_done() || next_receive(); }

  bool receive_one(std::unique_lock<std::mutex>& lock, ncclResult_t& result) {
    Operation* operation = next_receive();
    if (!operation) return false;
    auto& queue = world_.queues[{operation->peer, rank_}];
    const std::shared_ptr<Message> message = queue.front();
    queue.pop_front();
    if (message->count != operation->count || message->type != operation->type) {
      result = fail(ncclInvalidUsage, title(*operation) + " meets a send of " + std::to_string(message->count) +
                                          (message->type != operation->type ? " elements of another type" : ""));
      return true;
    }
    message->is_taken = true;
    lock.unlock();
    std::memcpy(operation->memory, message->source, operation->count * bytes_of(operation->type));
    lock.lock();
    operation->is_done = message->is_done = true;
    world_.changed.notify_all();
    return true;
  }

  std::string waiting() {
    for (const Operation& operation : operations_)
      if (!operation.is_done && !(operation.is_send && operation.message->is_done))
        return "rank " + std::to_string(rank_) + " waits: " + title(operation) + " was never matched";
    return "rank " + std::to_string(rank_) + " waits";
  }

  World& world_;
  int rank_;
  std::vector<Operation> operations_;
};

ncclResult_t run_group() {
  std::vector<Operation> operations;
  operations.swap(group);
  while (!operations.empty()) {
    ncclComm* communicator = operations.front().communicator;
    const auto rest = std::stable_partition(operations.begin(), operations.end(), [&](const Operation& operation) {
      return operation.communicator == communicator;
    });
    // NCCL would run several communicators at once; a group of the library has one.
    const std::vector<Operation> own(operations.begin(), rest);
    const ncclResult_t result = start(communicator, own.front().stream, [communicator, own] {
      return Exchange(communicator, own).run();
    });
    if (result != ncclSuccess) return result;
    operations.erase(operations.begin(), rest);
  }
  return ncclSuccess;
}

ncclResult_t post(Operation operation) {
  if (const auto result = ready(operation.communicator); result != ncclSuccess) return result;
  if (operation.peer < 0 || operation.peer >= operation.communicator->world->ranks)
    return fail(ncclInvalidArgument, "rank " + std::to_string(operation.peer) + " does not exist");
  group.push_back(std::move(operation));
  return group_depth ? ncclSuccess : run_group();
}

// Waits for all ranks; false where one failed or never came, unless they are known to come.
bool meet(World& world, bool will_come = false) {
  std::unique_lock<std::mutex> lock(world.mutex);
  const long generation = world.generation;
  if (++world.arrived == world.ranks) {
    world.arrived = 0;
    ++world.generation;
    world.changed.notify_all();
    return true;
  }
  const auto is_over = [&] { return world.generation != generation || world.has_failed; };
  if (will_come) world.changed.wait(lock, [&] { return world.generation != generation; });
  else world.changed.wait_for(lock, time_limit(), is_over);
  return world.generation != generation;
}

// Every rank shows its buffers, reads those of the others, and writes its own when all have read.
template <class Compute>
ncclResult_t meet_and_compute(ncclComm* communicator, Share share, std::size_t target_bytes,
                              Compute compute) {
  World& world = *communicator->world;
  world.shares[communicator->rank] = share;
  std::vector<char> result(target_bytes);
  if (!meet(world)) return fail(ncclTimeout, "deadlock: not all ranks called the collective");
  compute(world, communicator->rank, result.data());
  meet(world, true);
  if (share.target) std::memcpy(share.target, result.data(), target_bytes);
  return ncclSuccess;
}

template <class Compute>
ncclResult_t collective(const char* name, ncclComm* communicator, cudaStream_t stream, Share share,
                        std::size_t target_bytes, Compute compute) {
  if (const auto result = called(name); result != ncclSuccess) return result;
  if (const auto result = ready(communicator); result != ncclSuccess) return result;
  return start(communicator, stream, [=] {
    return meet_and_compute(communicator, share, target_bytes, compute);
  });
}

template <class T, class Op>
void reduce_range(const World& world, std::size_t first, std::size_t count, ncclRedOp_t op, T* result) {
  for (std::size_t i = 0; i < count; ++i) {
    T total = static_cast<const T*>(world.shares[0].source)[first + i];
    for (int rank = 1; rank < world.ranks; ++rank)
      total = collhub::reduced<Op>(total, static_cast<const T*>(world.shares[rank].source)[first + i]);
    result[i] = op == ncclAvg ? collhub::divided(total, world.ranks) : total;
  }
}

template <class T>
void reduce_range(const World& world, std::size_t first, std::size_t count, ncclRedOp_t op, void* result) {
  switch (op) {
    case ncclProd: return reduce_range<T, collhub::Prod>(world, first, count, op, static_cast<T*>(result));
    case ncclMin: return reduce_range<T, collhub::Min>(world, first, count, op, static_cast<T*>(result));
    case ncclMax: return reduce_range<T, collhub::Max>(world, first, count, op, static_cast<T*>(result));
    default: return reduce_range<T, collhub::Sum>(world, first, count, op, static_cast<T*>(result));
  }
}

void reduce_range(const World& world, std::size_t first, std::size_t count, ncclDataType_t type, ncclRedOp_t op, void* result) {
  switch (type) {
    case ncclFloat16: return reduce_range<collhub::Float16>(world, first, count, op, result);
    case ncclBfloat16: return reduce_range<collhub::Bfloat16>(world, first, count, op, result);
    case ncclFloat32: return reduce_range<float>(world, first, count, op, result);
    case ncclFloat64: return reduce_range<double>(world, first, count, op, result);
    case ncclInt32: return reduce_range<std::int32_t>(world, first, count, op, result);
    case ncclInt64: return reduce_range<std::int64_t>(world, first, count, op, result);
    default: return reduce_range<std::uint8_t>(world, first, count, op, result);
  }
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 0;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard<std::mutex> lock(worlds_mutex);
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "%s%d", own_ids().c_str(), ++last_id);
  return ncclSuccess;
}

// Joins the others that name the same id.
static ncclResult_t join(ncclComm_t* communicator, int ranks, const std::string& id, int rank,
                         bool is_blocking) {
  if (id.rfind(own_ids(), 0) != 0)
    return fail(ncclInvalidUsage, "ranks of the test double are threads of one process");
  std::shared_ptr<World> world;
  {
    const std::lock_guard<std::mutex> lock(worlds_mutex);
    auto& found = worlds[id];
    if (!found) found = std::make_shared<World>(ranks);
    world = found;
    if (++world->attached == ranks) worlds.erase(id);
  }
  if (world->ranks != ranks || rank < 0 || rank >= ranks)
    return fail(ncclInvalidArgument, "ranks disagree on their number");
  *communicator = new ncclComm(world, rank, is_blocking, id);
  if (!meet(*world))
    return fail(ncclTimeout, "deadlock: not all ranks joined the communicator");
  if (!is_blocking) (*communicator)->open_polls = 2;
  return is_blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return join(communicator, ranks, id.internal, rank, !config || config->blocking != 0);
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  return join(communicator, ranks, id.internal, rank, true);
}

ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t* split,
                           ncclConfig_t*) {
  if (const auto result = called("ncclCommSplit"); result != ncclSuccess) return result;
  if (const auto result = ready(communicator); result != ncclSuccess) return result;
  if (color != 0 || key != communicator->rank)
    return fail(ncclInvalidArgument, "the test double splits off all ranks in their order");
  const std::string id = communicator->id + "/" + std::to_string(communicator->splits++);
  const ncclResult_t result = join(split, communicator->world->ranks, id, key,
                                   communicator->is_blocking);
  if (result == ncclInProgress) communicator->open_polls = 2;
  return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t communicator, int* count) {
  if (const auto result = ready(communicator); result != ncclSuccess) return result;
  *count = communicator->world->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t communicator, int* rank) {
  *rank = communicator->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t, int* device) {
  *device = 0;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  *state = ncclInProgress;
  if (communicator->open_polls) {
    --communicator->open_polls;
    return ncclSuccess;
  }
  if (communicator->running.valid()) {
    if (communicator->running.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      return ncclSuccess;
    communicator->running.get();
  }
  const std::lock_guard<std::mutex> lock(communicator->mutex);
  *state = communicator->state;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclTimeout: return "operation timed out";
    default: return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t communicator) {
  if (!communicator) return last_error.c_str();
  // What failed on another thread.
  const std::lock_guard<std::mutex> lock(communicator->mutex);
  return communicator->error.empty() ? last_error.c_str() : communicator->error.c_str();
}

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (const auto result = called("ncclMemAlloc"); result != ncclSuccess) return result;
  *memory = std::malloc(bytes ? bytes : 1);
  return *memory ? ncclSuccess : fail(ncclInternalError, "out of memory");
}

ncclResult_t ncclMemFree(void* memory) {
  std::free(memory);
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t, void* memory, std::size_t, void** handle) {
  *handle = memory;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!group_depth) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth) return ncclSuccess;
  // A group in which a call failed starts nothing.
  ncclResult_t result = std::exchange(group_error, ncclSuccess);
  if (result == ncclSuccess) result = called("ncclGroupEnd");
  if (result == ncclSuccess) return run_group();
  group.clear();
  return result;
}

// Notes what a group must know of a call.
static ncclResult_t grouped(ncclResult_t result) {
  if (group_depth && result != ncclSuccess) group_error = result;
  return result;
}

ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  if (const auto result = called("ncclSend"); result != ncclSuccess) return grouped(result);
  void* memory = const_cast<void*>(source);
  return grouped(post({true, peer, memory, count, type, communicator, stream, nullptr}));
}

ncclResult_t ncclRecv(void* target, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  if (const auto result = called("ncclRecv"); result != ncclSuccess) return grouped(result);
  return grouped(post({false, peer, target, count, type, communicator, stream, nullptr}));
}

ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  return collective("ncclAllReduce", communicator, stream, {source, target}, count * bytes_of(type),
                    [=](const World& world, int, void* result) { reduce_range(world, 0, count, type, op, result); });
}

ncclResult_t ncclReduce(const void* source, void* target, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  const bool is_root = communicator->rank == root;
  return collective("ncclReduce", communicator, stream, {source, is_root ? target : nullptr}, is_root ? count * bytes_of(type) : 0,
                    [=](const World& world, int, void* result) {
                      if (is_root) reduce_range(world, 0, count, type, op, result);
                    });
}

ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t target_count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) {
  return collective("ncclReduceScatter", communicator, stream, {source, target}, target_count * bytes_of(type), [=](const World& world, int rank, void* result) {
    reduce_range(world, rank * target_count, target_count, type, op, result);
  });
}

ncclResult_t ncclAllGather(const void* source, void* target, std::size_t source_count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = source_count * bytes_of(type);
  return collective("ncclAllGather", communicator, stream, {source, target}, bytes * communicator->world->ranks,
                    [=](const World& world, int, char* result) {
                      for (int rank = 0; rank < world.ranks; ++rank)
                        std::memcpy(result + rank * bytes, world.shares[rank].source, bytes);
                    });
}

ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective("ncclBroadcast", communicator, stream, {source, target}, bytes, [=](const World& world, int, void* result) {
    std::memcpy(result, world.shares[root].source, bytes);
  });
}

void collhub_double_fail(const char* call, int after, ncclResult_t result) {
  failures_wanted[call] = {after, result};
}

void collhub_double_break(ncclComm_t communicator, ncclResult_t result) {
  last_error = "the communicator is broken as the test wants it";
  communicator->note(result);
}

int collhub_double_open_groups() { return group_depth; }

int collhub_double_calls(const char* call) { return calls_made[call]; }
}
