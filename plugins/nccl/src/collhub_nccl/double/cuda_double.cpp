// Streams and events of the stand-in for CUDA (cuda_runtime.h).
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace {

// A point in a stream that others wait for.
class Marker {
 public:
  void reach() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
  }
  bool is_reached() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_reached_;
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
};

bool wants_threads() {
  const char* text = std::getenv("COLLHUB_DOUBLE_ASYNC");
  return text && *text && std::strcmp(text, "0") != 0;
}

}  // namespace

struct CUevent_st {
  std::shared_ptr<Marker> marker;  // of the last record
};

struct CUstream_st {
  using Work = std::function<cudaError_t()>;

  CUstream_st() : is_async(wants_threads()) {
    if (is_async) thread = std::thread([this] { serve(); });
  }

  ~CUstream_st() {
    if (!is_async) return;
    push(nullptr);
    thread.join();
  }

  void push(Work work) {
    const std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }

  // Runs what is queued, in order. After an error the rest is left out, as on a device.
  void serve() {
    for (unsigned turn = 0;; ++turn) {
      const Work work = next();
      if (!work) return;
      // Delays without a pattern that streams could share.
      const auto delay = reinterpret_cast<std::size_t>(this) / 64 + turn * 7919;
      std::this_thread::sleep_for(std::chrono::microseconds(delay % 397));
      if (const cudaError_t result = work(); result != cudaSuccess) error = result;
    }
  }

  Work next() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return !queue.empty(); });
    Work work = std::move(queue.front());
    queue.pop_front();
    return work;
  }

  bool is_async;
  bool is_capturing = false;
  cudaError_t error = cudaSuccess;  // read after a marker was reached
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  std::thread thread;
};

bool cudaDoubleIsAsync(cudaStream_t stream) { return stream && stream->is_async; }

cudaError_t cudaDoubleEnqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
  if (!cudaDoubleIsAsync(stream)) return work();
  stream->push(std::move(work));
  return cudaSuccess;
}

cudaError_t cudaDoubleLaunch(cudaStream_t stream, std::function<void()> work) {
  return cudaDoubleEnqueue(stream, [work] {
    work();
    return cudaSuccess;
  });
}

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "the test double does not support this";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!cudaDoubleIsAsync(stream)) return cudaSuccess;
  CUevent_st event;
  cudaEventRecord(&event, stream);
  event.marker->wait();
  return stream->error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event->marker) return cudaSuccess;
  return cudaDoubleLaunch(stream, [marker = event->marker] { marker->wait(); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool is_active = stream && stream->is_capturing;
  *status = is_active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->marker = std::make_shared<Marker>();
  return cudaDoubleLaunch(stream, [marker = event->marker] { marker->reach(); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return !event->marker || event->marker->is_reached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes ? bytes : 1);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return cudaDoubleLaunch(stream, [=] {
    // No address of nothing may be null for C.
    if (bytes) std::memcpy(target, source, bytes);
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaErrorNotSupported; }

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return cudaErrorNotSupported;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }

void collhub_double_capture(cudaStream_t stream, int is_capturing) {
  stream->is_capturing = is_capturing != 0;
}
}
