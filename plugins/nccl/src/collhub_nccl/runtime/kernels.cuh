// Copies, reductions and divisions on the device: many sources in one pass, 16 bytes at a time.
//
// The same functions run on the host where there is no CUDA compiler. A value is rounded after
// every operator, so that a fused reduction has the bits of the reductions that it is made of.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

template <class T, class Op>
COLLHUB_BOTH void run_job(const DeviceJob<T>& job, Share share) {
  constexpr std::size_t kSize = Pack<T>::kSize;
  const std::size_t packs = (job.count - job.head) / kSize;
  const std::size_t tail = job.head + packs * kSize;
  for (std::size_t i = share.first; i < packs; i += share.stride)
    run_unit<Pack<T>, Op>(job, job.head + i * kSize);
  for (std::size_t i = share.first; i < job.head; i += share.stride) run_unit<T, Op>(job, i);
  for (std::size_t i = tail + share.first; i < job.count; i += share.stride)
    run_unit<T, Op>(job, i);
}

template <class T>
COLLHUB_BOTH void divide_values(T* values, std::size_t count, int divisor, Share share) {
  for (std::size_t i = share.first; i < count; i += share.stride)
    values[i] = divided(values[i], divisor);
}

// Elements before a pack boundary, if it is the same for all; else all of them go one by one.
template <class T>
std::size_t head_of(const DeviceJob<T>& job) {
  const auto place = [](const T* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % kPackBytes;
  };
  for (int i = 0; i < job.source_count; ++i)
    if (place(job.sources[i]) != place(job.target)) return job.count;
  const std::size_t gap = (kPackBytes - place(job.target)) % kPackBytes / sizeof(T);
  return std::min(gap, job.count);
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
__global__ void divide_kernel(T* values, std::size_t count, int divisor) {
  divide_values(values, count, divisor, own_share());
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
  divide_kernel<T><<<blocks_for(count), kThreads, 0, stream>>>(values, count, divisor);
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
  return cudaDoubleLaunch(stream, [=] { divide_values(values, count, divisor, {0, 1}); });
}
#endif

}  // namespace collhub
