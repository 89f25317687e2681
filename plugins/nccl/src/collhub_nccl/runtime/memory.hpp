// Device memory for messages: allocated by NCCL and registered with a communicator, so that NCCL
// may send from it without copies. NCCL before 2.19 does neither: then it is CUDA's own memory.
#pragma once

#include "calls.hpp"

namespace collhub {

struct DeviceBuffer {
  void* memory = nullptr;
  void* handle = nullptr;  // of the registration; null if there is none
};

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)

inline DeviceBuffer allocate(std::size_t bytes, const char* purpose) {
  DeviceBuffer buffer;
  check(ncclMemAlloc(&buffer.memory, bytes), purpose);
  return buffer;
}

inline void enroll(DeviceBuffer& buffer, std::size_t bytes, ncclComm_t communicator) {
  const auto result = ncclCommRegister(communicator, buffer.memory, bytes, &buffer.handle);
  finish(result, "ncclCommRegister", communicator);
}

inline void give_back(const DeviceBuffer& buffer, ncclComm_t communicator) {
  if (buffer.handle) ncclCommDeregister(communicator, buffer.handle);
  ncclMemFree(buffer.memory);
}

#else

inline DeviceBuffer allocate(std::size_t bytes, const char* purpose) {
  DeviceBuffer buffer;
  check(cudaMalloc(&buffer.memory, bytes), purpose);
  return buffer;
}

inline void enroll(DeviceBuffer&, std::size_t, ncclComm_t) {}

inline void give_back(const DeviceBuffer& buffer, ncclComm_t) { cudaFree(buffer.memory); }

#endif

}  // namespace collhub
