// One call of the library in elements and bytes, and NCCL's own collective of the same meaning.
#pragma once

#include <limits>

#include "calls.hpp"
#include "elements.hpp"
#include "schedule.hpp"

namespace collhub {

// `count` as in NCCL: elements of the vector, or of one rank's part of it.
struct Call {
  const void* send;
  void* recv;
  std::size_t count;
  ncclDataType_t datatype;
  ncclRedOp_t op;
  ncclComm_t communicator;
  cudaStream_t stream;
};

inline std::size_t bytes_of(ncclDataType_t type) {
  switch (static_cast<int>(type)) {
    case ncclInt8:
    case ncclUint8:
    case kFloat8e4m3:
    case kFloat8e5m2: return 1;
    case ncclFloat16:
    case kBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: break;
  }
  throw Failure(ncclInvalidArgument, "datatype " + std::to_string(type) + " is not one of NCCL's");
}

// Calls work<T>(): a generic lambda takes a value of the type, which it does not read.
template <class Work>
void with_type(ncclDataType_t type, const Work& work) {
  switch (static_cast<int>(type)) {
    case ncclFloat16: return work(Float16{});
    case kBfloat16: return work(Bfloat16{});
    case ncclFloat32: return work(float{});
    case ncclFloat64: return work(double{});
    case ncclInt32: return work(std::int32_t{});
    case ncclInt64: return work(std::int64_t{});
    // What is only moved goes by bytes.
    default: return work(std::uint8_t{});
  }
}

template <class Work>
void with_op(ncclRedOp_t op, const Work& work) {
  if (op == ncclProd) return work(Prod{});
  if (op == ncclMin) return work(Min{});
  if (op == ncclMax) return work(Max{});
  work(Sum{});
}

// Whether the kernels reduce such elements; operators of users, and the types of eight bits and
// without sign, are left to NCCL.
inline bool is_reducible(ncclDataType_t type, ncclRedOp_t op) {
  switch (static_cast<int>(type)) {
    case ncclFloat16:
    case kBfloat16:
    case ncclFloat32:
    case ncclFloat64:
    case ncclInt32:
    case ncclInt64: return op >= ncclSum && op <= ncclAvg;
    default: return false;
  }
}

inline std::size_t product(std::size_t one, std::size_t other) {
  if (other && one > std::numeric_limits<std::size_t>::max() / other)
    throw Failure(ncclInvalidArgument, "the buffers of the call are larger than memory can be");
  return one * other;
}

inline bool has_native(const Schedule& schedule) { return schedule.native != Native::kNone; }

// NCCL's own collective, of `count` elements from `offset` on.
inline ncclResult_t start_native(const Schedule& schedule, const Call& call, std::size_t offset,
                                 std::size_t count) {
  const std::size_t bytes = offset * bytes_of(call.datatype);
  // Ranks that have no part in one side may pass no memory for it.
  const void* send = call.send ? static_cast<const char*>(call.send) + bytes : nullptr;
  void* recv = call.recv ? static_cast<char*>(call.recv) + bytes : nullptr;
  const auto type = call.datatype;
  const auto op = call.op;
  const auto comm = call.communicator;
  switch (schedule.native) {
    case Native::kAllReduce: return ncclAllReduce(send, recv, count, type, op, comm, call.stream);
    case Native::kAllGather: return ncclAllGather(send, recv, count, type, comm, call.stream);
    case Native::kReduceScatter:
      return ncclReduceScatter(send, recv, count, type, op, comm, call.stream);
    case Native::kBroadcast:
      return ncclBroadcast(send, recv, count, type, schedule.root, comm, call.stream);
    case Native::kReduce:
      return ncclReduce(send, recv, count, type, op, schedule.root, comm, call.stream);
    case Native::kNone: break;
  }
  return ncclInvalidArgument;
}

inline void run_native(const Schedule& schedule, const Call& call, std::size_t offset,
                       std::size_t count) {
  if (!has_native(schedule))
    throw Failure(ncclInvalidArgument, "NCCL has no collective for this datatype and operator");
  const ncclResult_t result = start_native(schedule, call, offset, count);
  finish(result, "NCCL's own collective", call.communicator);
}

}  // namespace collhub
