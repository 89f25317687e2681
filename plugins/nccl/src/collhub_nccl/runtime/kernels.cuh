// Copies, reductions and divisions on the device: many sources in one pass, 16 bytes at a time.
//
// The same functions run on the host where there is no CUDA compiler. A value is rounded after
// every operator, so that a fused reduction has the bits of the reductions that it is made of.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "elements.hpp"
#include "jobs.hpp"

namespace collhub {

constexpr int kThreads = 256;
constexpr std::size_t kPackBytes = 16, kMostBlocks = 512;

// What one thread loads and stores at once.
template <class T>
struct alignas(kPackBytes) Pack {
  static constexpr std::size_t kSize = kPackBytes / sizeof(T);
  T values[kSize];
};

template <class T>
struct DeviceJob {
  T* target;
  const T* sources[kMostSources];
  std::size_t count;
  std::size_t head;   // elements before the first whole pack; all where packs do not line up
  int source_count;
  bool reads_target;
};

template <class T>
struct DeviceBatch {
  DeviceJob<T> jobs[kMostJobs];
  int size = 0;
};
static_assert(sizeof(DeviceBatch<double>) < 4096, "CUDA takes 4 KiB of arguments");

// Which elements one thread of many works on.
struct Share {
  std::size_t first;
  std::size_t stride;
};

template <class Op, class T>
COLLHUB_BOTH void combine(T& total, const T& source) {
  total = reduced<Op>(total, source);
}

template <class Op, class T>
COLLHUB_BOTH void combine(Pack<T>& total, const Pack<T>& source) {
  for (std::size_t i = 0; i < Pack<T>::kSize; ++i) combine<Op>(total.values[i], source.values[i]);
}

// Unit: an element or a pack; `offset` in elements.
template <class Unit, class Op, class T>
COLLHUB_BOTH void run_unit(const DeviceJob<T>& job, std::size_t offset) {
  Unit* target = reinterpret_cast<Unit*>(job.target + offset);
  const auto source = [&](int i) {
    return *reinterpret_cast<const Unit*>(job.sources[i] + offset);
  };
  Unit total = job.reads_target ? *target : source(0);
  for (int i = job.reads_target ? 0 : 1; i < job.source_count; ++i) combine<Op>(total, source(i));
  *target = total;
}

template <class T>
COLLHUB_BOTH void divide(T& value, int divisor) {
  value = divided(value, divisor);
}

template <class T>
COLLHUB_BOTH void divide(Pack<T>& pack, int divisor) {
  for (T& value : pack.values) divide(value, divisor);
}

// Elements [0, count) in one thread's share: packs from `head` on, the others one by one.
// work<Unit>(offset) is called as work(Unit*, offset), whose pointer only names the type.
template <class T, class Work>
COLLHUB_BOTH void for_units(std::size_t head, std::size_t count, Share share, const Work& work) {
  constexpr std::size_t kSize = Pack<T>::kSize;
  const std::size_t packs = (count - head) / kSize;
  const std::size_t tail = head + packs * kSize;
  for (std::size_t i = share.first; i < packs; i += share.stride)
    work(static_cast<Pack<T>*>(nullptr), head + i * kSize);
  for (std::size_t i = share.first; i < head; i += share.stride) work(static_cast<T*>(nullptr), i);
  for (std::size_t i = tail + share.first; i < count; i += share.stride)
    work(static_cast<T*>(nullptr), i);
}

template <class T, class Op>
COLLHUB_BOTH void run_job(const DeviceJob<T>& job, Share share) {
  for_units<T>(job.head, job.count, share, [&](auto* unit, std::size_t offset) {
    run_unit<std::decay_t<decltype(*unit)>, Op>(job, offset);
  });
}

template <class T>
COLLHUB_BOTH void divide_values(T* values, std::size_t head, std::size_t count, int divisor,
                                Share share) {
  for_units<T>(head, count, share, [&](auto* unit, std::size_t offset) {
    auto* place = reinterpret_cast<std::decay_t<decltype(unit)>>(values + offset);
    auto value = *place;
    divide(value, divisor);
    *place = value;
  });
}

template <class T>
std::size_t place_in_pack(const T* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % kPackBytes;
}

template <class T>
std::size_t head_of(const T* memory, std::size_t count) {
  return std::min((kPackBytes - place_in_pack(memory)) % kPackBytes / sizeof(T), count);
}

// Elements before a pack boundary, if it is the same for all; else all of them go one by one.
template <class T>
std::size_t head_of(const DeviceJob<T>& job) {
  for (int i = 0; i < job.source_count; ++i)
    if (place_in_pack(job.sources[i]) != place_in_pack(job.target)) return job.count;
  return head_of(job.target, job.count);
}

#ifdef __CUDACC__
__device__ inline Share own_share() {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  return {static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x, threads};
}

template <class T, class Op>
__global__ void batch_kernel(const __grid_constant__ DeviceBatch<T> batch) {
  run_job<T, Op>(batch.jobs[blockIdx.y], own_share());
}

template <class T>
__global__ void divide_kernel(T* values, std::size_t head, std::size_t count, int divisor) {
  divide_values(values, head, count, divisor, own_share());
}

// Blocks for so many units of work, one a thread; more are reached by strides.
inline unsigned blocks_for(std::size_t units) {
  const std::size_t wanted = (units + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::min(std::max<std::size_t>(wanted, 1), kMostBlocks));
}

template <class T, class Op>
cudaError_t launch_batch(const DeviceBatch<T>& batch, cudaStream_t stream) {
  std::size_t units = 0;
  for (int i = 0; i < batch.size; ++i) {
    const DeviceJob<T>& job = batch.jobs[i];
    units = std::max({units, job.head, (job.count - job.head) / Pack<T>::kSize});
  }
  const dim3 grid(blocks_for(units), static_cast<unsigned>(batch.size));
  batch_kernel<T, Op><<<grid, kThreads, 0, stream>>>(batch);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_divide(T* values, std::size_t count, int divisor, cudaStream_t stream) {
  const std::size_t head = head_of(values, count);
  const unsigned blocks = blocks_for(count / Pack<T>::kSize);
  divide_kernel<T><<<blocks, kThreads, 0, stream>>>(values, head, count, divisor);
  return cudaGetLastError();
}
#else
// Without a CUDA compiler memory is the host's (double/cuda_runtime.h).
template <class T, class Op>
cudaError_t launch_batch(const DeviceBatch<T>& batch, cudaStream_t stream) {
  return cudaDoubleLaunch(stream, [batch] {
    for (int i = 0; i < batch.size; ++i) run_job<T, Op>(batch.jobs[i], {0, 1});
  });
}

template <class T>
cudaError_t launch_divide(T* values, std::size_t count, int divisor, cudaStream_t stream) {
  const std::size_t head = head_of(values, count);
  return cudaDoubleLaunch(stream, [=] { divide_values(values, head, count, divisor, {0, 1}); });
}
#endif

}  // namespace collhub
