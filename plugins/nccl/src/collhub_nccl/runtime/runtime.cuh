// Runs the records of one rank: a group of sends and receives per level, then its copies and reductions, on one stream.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "elements.hpp"
#include "schedule.hpp"

namespace collhub {

template <class T>
constexpr ncclDataType_t nccl_type();
template <>
constexpr ncclDataType_t nccl_type<Float16>() { return ncclFloat16; }
template <>
constexpr ncclDataType_t nccl_type<Bfloat16>() { return ncclBfloat16; }
template <>
constexpr ncclDataType_t nccl_type<float>() { return ncclFloat32; }
template <>
constexpr ncclDataType_t nccl_type<double>() { return ncclFloat64; }
template <>
constexpr ncclDataType_t nccl_type<std::int32_t>() { return ncclInt32; }
template <>
constexpr ncclDataType_t nccl_type<std::int64_t>() { return ncclInt64; }

inline void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

inline void check(ncclResult_t result, const char* what, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(communicator);
  throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result) + (detail && *detail ? ": " : "") +
                           (detail ? detail : ""));
}

constexpr int kThreads = 256;
constexpr std::size_t kElementsPerBlock = 1024, kMostBlocks = 512;

#ifdef __CUDACC__
template <class T, class Op>
__global__ void reduce_kernel(T* target, const T* source, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    target[i] = reduced<Op>(target[i], source[i]);
}

template <class T>
__global__ void divide_kernel(T* values, std::size_t count, int divisor) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    values[i] = divided(values[i], divisor);
}

inline unsigned grid_of(std::size_t count) {
  const std::size_t wanted = (count + kElementsPerBlock - 1) / kElementsPerBlock;
  return static_cast<unsigned>(std::min(std::max<std::size_t>(wanted, 1), kMostBlocks));
}

template <class T, class Op>
void launch_reduce(T* target, const T* source, std::size_t count, cudaStream_t stream) {
  reduce_kernel<T, Op><<<grid_of(count), kThreads, 0, stream>>>(target, source, count);
  check(cudaGetLastError(), "reduction");
}

template <class T>
void launch_divide(T* values, std::size_t count, int divisor, cudaStream_t stream) {
  divide_kernel<T><<<grid_of(count), kThreads, 0, stream>>>(values, count, divisor);
  check(cudaGetLastError(), "division");
}
#else
// Without a CUDA compiler memory is the host's, and streams run at once (double/cuda_runtime.h).
template <class T, class Op>
void launch_reduce(T* target, const T* source, std::size_t count, cudaStream_t) {
  for (std::size_t i = 0; i < count; ++i) target[i] = reduced<Op>(target[i], source[i]);
}

template <class T>
void launch_divide(T* values, std::size_t count, int divisor, cudaStream_t) {
  for (std::size_t i = 0; i < count; ++i) values[i] = divided(values[i], divisor);
}
#endif

// The schedule on elements of one type: a block is `block` elements, `buffers` are INPUT, OUTPUT and SCRATCH on the device.
template <class T, class Op>
struct Program {
  const Record* begin;
  const Record* end;
  T* buffers[3];
  std::size_t block;
  ncclComm_t communicator;
  cudaStream_t stream;

  // Enqueues everything; `level` tells other threads how far this one is.
  void run(std::atomic<int>& level) const {
    for (const Record* next = begin; next != end;) {
      level = next->level;
      next = exchange(next);
      for (; next != end && next->level == level && next->kind >= kCopy; ++next) work(*next);
    }
  }

 private:
  // All messages of a level are one group: only then no order of sends and receives can block.
  const Record* exchange(const Record* first) const {
    if (first->kind >= kCopy) return first;
    const Record* next = first;
    check(ncclGroupStart(), "ncclGroupStart");
    for (; next != end && next->level == first->level && next->kind < kCopy; ++next) post(*next);
    check(ncclGroupEnd(), "ncclGroupEnd", communicator);
    return next;
  }

  void post(const Record& record) const {
    const std::size_t count = record.count * block;
    if (record.kind == kSend)
      check(ncclSend(source(record), count, nccl_type<T>(), record.peer, communicator, stream), "ncclSend", communicator);
    else
      check(ncclRecv(target(record), count, nccl_type<T>(), record.peer, communicator, stream), "ncclRecv", communicator);
  }

  void work(const Record& record) const {
    const std::size_t count = record.count * block;
    if (record.kind == kReduce)
      launch_reduce<T, Op>(target(record), source(record), count, stream);
    else
      check(cudaMemcpyAsync(target(record), source(record), count * sizeof(T), cudaMemcpyDeviceToDevice, stream), "copy");
  }

  T* source(const Record& record) const { return buffers[record.source_buffer] + record.source_offset * block; }
  T* target(const Record& record) const { return buffers[record.target_buffer] + record.target_offset * block; }
};

}  // namespace collhub
