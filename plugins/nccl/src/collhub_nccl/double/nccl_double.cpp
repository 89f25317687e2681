// Stands in for NCCL where there is no GPU: ranks are threads or processes of one machine, messages
// are copies, and the rules are stricter than NCCL's.
//
// A group posts all its operations and ends when all are done. A send ends only when it is
// received; messages of one (source, destination) pair match in order; count and type must be equal
// at both ends; no two operations of a group may touch the same memory unless both only read it.
// What waits longer than COLLHUB_DOUBLE_TIMEOUT_S (20 seconds) fails and says for whom. A call on a
// non-blocking communicator that is still in progress is an error.
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "elements.hpp"
#include "exchange.hpp"
#include "world.hpp"

namespace {

thread_local int group_depth = 0;
thread_local ncclResult_t group_error = ncclSuccess;
thread_local std::vector<Operation> group;
thread_local std::string last_error;
thread_local std::map<std::string, int> calls_made;
thread_local std::map<std::string, std::pair<int, ncclResult_t>> failures_wanted;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

ncclResult_t fail(ncclResult_t result, const std::string& message) {
  last_error = message;
  return result;
}

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

ncclResult_t exchange(ncclComm* communicator, std::vector<Operation> operations) {
  Exchange own(*communicator->world, communicator->rank, std::move(operations));
  const ncclResult_t result = own.run();
  return result == ncclSuccess ? result : fail(result, own.error());
}

ncclResult_t run_group() {
  std::vector<Operation> operations;
  operations.swap(group);
  while (!operations.empty()) {
    ncclComm* communicator = operations.front().communicator;
    const auto is_its = [&](const Operation& operation) {
      return operation.communicator == communicator;
    };
    const auto rest = std::stable_partition(operations.begin(), operations.end(), is_its);
    // NCCL would run several communicators at once; a group of the library has one.
    const std::vector<Operation> own(operations.begin(), rest);
    const ncclResult_t result = start(communicator, own.front().stream, [communicator, own] {
      return exchange(communicator, own);
    });
    if (result != ncclSuccess) return result;
    operations.erase(operations.begin(), rest);
  }
  return ncclSuccess;
}

ncclResult_t post(Operation operation) {
  if (const auto result = ready(operation.communicator); result != ncclSuccess) return result;
  if (operation.peer < 0 || operation.peer >= operation.communicator->world->ranks())
    return fail(ncclInvalidArgument, "rank " + std::to_string(operation.peer) + " does not exist");
  group.push_back(std::move(operation));
  return group_depth ? ncclSuccess : run_group();
}

// Waits for all ranks; false where one failed or never came.
bool meet(const World& world) {
  World::Lock lock(world);
  SharedState& state = world.state();
  const long generation = state.generation;
  if (++state.arrived == state.ranks) {
    state.arrived = 0;
    ++state.generation;
    world.notify();
    return true;
  }
  const auto limit = std::chrono::duration_cast<World::Clock::duration>(time_limit());
  const auto deadline = World::Clock::now() + limit;
  while (state.generation == generation && !state.has_failed)
    if (!world.wait_until(deadline)) break;
  return state.generation != generation;
}

// A buffer of every rank.
using Inputs = std::vector<std::vector<char>>;

// What a rank gives to a collective and gets from it, in bytes; null where it has no part in it.
struct Share {
  const void* source;
  std::size_t source_bytes;
  void* target;
  std::size_t target_bytes;
  int root = -1;  // the only one that gives, if there is one
};

// Every rank sends its buffer to all others, and computes its result from all.
template <class Compute>
ncclResult_t gather_and_compute(ncclComm* communicator, const Share& share, Compute compute) {
  const int ranks = communicator->world->ranks(), own = communicator->rank;
  Inputs inputs(index(ranks), std::vector<char>(share.source_bytes));
  const auto gives = [&](int rank) { return share.root < 0 || rank == share.root; };
  if (gives(own) && share.source_bytes)
    std::memcpy(inputs[index(own)].data(), share.source, share.source_bytes);
  std::vector<Operation> operations;
  const auto add = [&](bool is_send, int peer, std::vector<char>& memory) {
    operations.push_back(
        {is_send, peer, memory.data(), memory.size(), ncclInt8, communicator, nullptr});
  };
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == own) continue;
    if (gives(own)) add(true, peer, inputs[index(own)]);
    if (gives(peer)) add(false, peer, inputs[index(peer)]);
  }
  if (const auto result = exchange(communicator, operations); result != ncclSuccess) return result;
  // Into memory of its own first: the target may be a part of the source.
  std::vector<char> output(share.target_bytes);
  compute(inputs, output.data());
  if (share.target_bytes) std::memcpy(share.target, output.data(), share.target_bytes);
  return ncclSuccess;
}

template <class Compute>
ncclResult_t collective(const char* name, ncclComm* communicator, cudaStream_t stream, Share share,
                        Compute compute) {
  if (const auto result = called(name); result != ncclSuccess) return result;
  if (const auto result = ready(communicator); result != ncclSuccess) return result;
  return start(communicator, stream, [=] {
    return gather_and_compute(communicator, share, compute);
  });
}

// Elements [first, first + count) of all inputs, reduced.
struct Range {
  std::size_t first;
  std::size_t count;
  ncclRedOp_t op;
};

template <class T, class Op>
void reduce_as(const Inputs& inputs, Range range, T* result) {
  const int ranks = static_cast<int>(inputs.size());
  const auto at = [&](int rank, std::size_t i) {
    return reinterpret_cast<const T*>(inputs[index(rank)].data())[range.first + i];
  };
  for (std::size_t i = 0; i < range.count; ++i) {
    T total = at(0, i);
    for (int rank = 1; rank < ranks; ++rank) total = collhub::reduced<Op>(total, at(rank, i));
    result[i] = range.op == ncclAvg ? collhub::divided(total, ranks) : total;
  }
}

template <class T>
void reduce_typed(const Inputs& inputs, Range range, void* result) {
  T* typed = static_cast<T*>(result);
  switch (range.op) {
    case ncclProd: return reduce_as<T, collhub::Prod>(inputs, range, typed);
    case ncclMin: return reduce_as<T, collhub::Min>(inputs, range, typed);
    case ncclMax: return reduce_as<T, collhub::Max>(inputs, range, typed);
    default: return reduce_as<T, collhub::Sum>(inputs, range, typed);
  }
}

void reduce_range(const Inputs& inputs, Range range, ncclDataType_t type, void* result) {
  switch (type) {
    case ncclFloat16: return reduce_typed<collhub::Float16>(inputs, range, result);
    case ncclBfloat16: return reduce_typed<collhub::Bfloat16>(inputs, range, result);
    case ncclFloat32: return reduce_typed<float>(inputs, range, result);
    case ncclFloat64: return reduce_typed<double>(inputs, range, result);
    case ncclInt32: return reduce_typed<std::int32_t>(inputs, range, result);
    case ncclInt64: return reduce_typed<std::int64_t>(inputs, range, result);
    default: return reduce_typed<std::uint8_t>(inputs, range, result);
  }
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 0;  // no version of NCCL
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  // The name of a file that nobody else has.
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "double_%08x%08x%08x", random(), random(),
                random());
  return ncclSuccess;
}

// Joins the others that name the same id.
static ncclResult_t join(ncclComm_t* communicator, int ranks, const std::string& id, int rank,
                         bool is_blocking) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return fail(ncclInvalidArgument, "the rank is not one of the communicator");
  std::shared_ptr<World> world;
  try {
    world = World::joined(id, ranks);
  } catch (const std::exception& error) {
    return fail(ncclSystemError, error.what());
  }
  if (!world) return fail(ncclInvalidArgument, "ranks disagree on their number");
  *communicator = new ncclComm(world, rank, is_blocking, id);
  if (!meet(*world)) {
    world->unlink();
    return fail(ncclTimeout, "deadlock: not all ranks joined the communicator");
  }
  if (!is_blocking) (*communicator)->open_polls = 2;
  return is_blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  return join(communicator, ranks, id.internal, rank, true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return join(communicator, ranks, id.internal, rank, !config || config->blocking != 0);
}

ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t* split,
                           ncclConfig_t*) {
  if (const auto result = called("ncclCommSplit"); result != ncclSuccess) return result;
  if (const auto result = ready(communicator); result != ncclSuccess) return result;
  if (color != 0 || key != communicator->rank)
    return fail(ncclInvalidArgument, "the test double splits off all ranks in their order");
  const std::string id = communicator->id + "_" + std::to_string(communicator->splits++);
  const ncclResult_t result = join(split, communicator->world->ranks(), id, key,
                                   communicator->is_blocking);
  if (result == ncclInProgress) communicator->open_polls = 2;
  return result;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  called("ncclCommAbort");
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t communicator, int* count) {
  if (const auto result = ready(communicator); result != ncclSuccess) return result;
  *count = communicator->world->ranks();
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
    // Its result is the state of the communicator.
    static_cast<void>(communicator->running.get());
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
  return grouped(post({true, peer, memory, count, type, communicator, stream}));
}

ncclResult_t ncclRecv(void* target, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  if (const auto result = called("ncclRecv"); result != ncclSuccess) return grouped(result);
  return grouped(post({false, peer, target, count, type, communicator, stream}));
}

ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective("ncclAllReduce", communicator, stream, {source, bytes, target, bytes},
                    [=](const Inputs& inputs, void* result) {
                      reduce_range(inputs, {0, count, op}, type, result);
                    });
}

ncclResult_t ncclReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  const bool is_root = communicator->rank == root;
  return collective("ncclReduce", communicator, stream, {source, bytes, target, is_root ? bytes : 0},
                    [=](const Inputs& inputs, void* result) {
                      if (is_root) reduce_range(inputs, {0, count, op}, type, result);
                    });
}

ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t target_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t communicator,
                               cudaStream_t stream) {
  const std::size_t bytes = target_count * bytes_of(type);
  const std::size_t first = index(communicator->rank) * target_count;
  const Share share{source, bytes * index(communicator->world->ranks()), target, bytes};
  return collective("ncclReduceScatter", communicator, stream, share,
                    [=](const Inputs& inputs, void* result) {
                      reduce_range(inputs, {first, target_count, op}, type, result);
                    });
}

ncclResult_t ncclAllGather(const void* source, void* target, std::size_t source_count,
                           ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = source_count * bytes_of(type);
  const Share share{source, bytes, target, bytes * index(communicator->world->ranks())};
  return collective("ncclAllGather", communicator, stream, share,
                    [](const Inputs& inputs, char* result) {
                      for (const auto& input : inputs)
                        result = std::copy(input.begin(), input.end(), result);
                    });
}

ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective("ncclBroadcast", communicator, stream, {source, bytes, target, bytes, root},
                    [root](const Inputs& inputs, char* result) {
                      std::copy(inputs[index(root)].begin(), inputs[index(root)].end(), result);
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
