// Calls of NCCL and CUDA with their errors: every one is checked, every group is closed, and what
// a non-blocking communicator only began is waited for.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace collhub {

// The oldest header in which ncclCommSplit, by which lanes get their communicators, is declared.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "NCCL 2.18 or later is needed");

// Data types that older headers do not declare; their numbers are the same in all versions.
constexpr int kBfloat16 = 9, kFloat8e4m3 = 10, kFloat8e5m2 = 11;

// Status of a wait that took too long. Before NCCL 2.30 no status has this meaning.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
constexpr ncclResult_t kTimeout = ncclTimeout;
#else
constexpr ncclResult_t kTimeout = ncclSystemError;
#endif

// Why a call of the library failed, and the status that its caller gets.
struct Failure : std::runtime_error {
  Failure(ncclResult_t result, const std::string& message)
      : std::runtime_error(message), status(result) {}

  ncclResult_t status;
};

inline void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw Failure(ncclUnhandledCudaError, std::string(what) + ": " + cudaGetErrorString(result));
}

inline void check(ncclResult_t result, const char* what, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(communicator);
  const std::string more = detail && *detail ? std::string(": ") + detail : "";
  throw Failure(result, std::string(what) + ": " + ncclGetErrorString(result) + more);
}

// How long a non-blocking communicator may take to start what it was given.
inline std::chrono::duration<double> patience() {
  const char* text = std::getenv("COLLHUB_TIMEOUT_S");
  const double seconds = text ? std::atof(text) : 0;
  return std::chrono::duration<double>(seconds > 0 ? seconds : 600);
}

// What became of the last call of a non-blocking communicator. NCCL forbids any other call on it,
// and any work on its stream, while that is open.
inline ncclResult_t settled(ncclComm_t communicator) {
  const auto deadline = std::chrono::steady_clock::now() + patience();
  ncclResult_t state = ncclInProgress;
  for (;;) {
    check(ncclCommGetAsyncError(communicator, &state), "ncclCommGetAsyncError", communicator);
    if (state != ncclInProgress) return state;
    if (std::chrono::steady_clock::now() > deadline)
      throw Failure(kTimeout, "the communicator is in progress for longer than COLLHUB_TIMEOUT_S");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

inline void finish(ncclResult_t result, const char* what, ncclComm_t communicator) {
  check(result == ncclInProgress ? settled(communicator) : result, what, communicator);
}

// An error that NCCL found behind the last call, such as a peer that is gone: nothing more can run.
inline void check_health(ncclComm_t communicator) {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(communicator, &state), "ncclCommGetAsyncError", communicator);
  finish(state, "the communicator failed before this call", communicator);
}

// A group of sends and receives. Left by an error it is closed too: an open group would swallow
// every later call of this thread.
class Group {
 public:
  Group() { check(ncclGroupStart(), "ncclGroupStart"); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (is_open_) ncclGroupEnd();
  }

  void end(ncclComm_t communicator) {
    is_open_ = false;
    finish(ncclGroupEnd(), "ncclGroupEnd", communicator);
  }

 private:
  bool is_open_ = true;
};

// Within a group a call only notes what is to be done.
inline void check_posted(ncclResult_t result, const char* what, ncclComm_t communicator) {
  if (result != ncclInProgress) check(result, what, communicator);
}

}  // namespace collhub
