// The C interface of the library; names.hpp holds the names of its functions.
#include <map>

#include "binding.hpp"
#include "names.hpp"

namespace collhub {
namespace {

thread_local std::string last_error;

// A place for the binding of a communicator. Making it waits for other ranks, which may be threads
// of this process: each place has a lock of its own.
struct Place {
  std::mutex mutex;
  std::shared_ptr<Binding> binding;
};

class Registry {
 public:
  std::shared_ptr<Place> at(ncclComm_t communicator, bool adds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (adds && !places_.count(communicator))
      places_[communicator] = std::make_shared<Place>();
    const auto found = places_.find(communicator);
    return found == places_.end() ? nullptr : found->second;
  }

  void forget(ncclComm_t communicator) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_.erase(communicator);
  }

 private:
  std::mutex mutex_;
  std::map<ncclComm_t, std::shared_ptr<Place>> places_;
};

Registry& registry() {
  // Never destroyed: at the end of a process CUDA may be gone before this would be.
  static Registry* const all = new Registry;
  return *all;
}

std::shared_ptr<Binding> binding_of(ncclComm_t communicator, cudaStream_t stream) {
  const std::shared_ptr<Place> place = registry().at(communicator, true);
  const std::lock_guard<std::mutex> lock(place->mutex);
  if (!place->binding)
    place->binding = std::make_shared<Binding>(kSchedule, communicator, stream);
  return place->binding;
}

void run(const Call& call) {
  if (!call.communicator) throw Failure(ncclInvalidArgument, "the communicator is null");
  // Also before the first call: a communicator that does not block may still be joining.
  check_health(call.communicator);
  binding_of(call.communicator, call.stream)->run(call);
}

void release(ncclComm_t communicator) {
  const std::shared_ptr<Place> place = registry().at(communicator, false);
  if (!place) return;
  registry().forget(communicator);
  const std::lock_guard<std::mutex> lock(place->mutex);
  if (place->binding) place->binding->close();
  place->binding.reset();
}

// No exception may reach a caller that is not C++.
template <class Work>
ncclResult_t guarded(const Work& work) {
  last_error.clear();
  try {
    work();
    return ncclSuccess;
  } catch (const Failure& failure) {
    last_error = failure.what();
    return failure.status;
  } catch (const std::exception& error) {
    last_error = error.what();
    return ncclSystemError;
  }
}

}  // namespace
}  // namespace collhub

extern "C" {

COLLHUB_EXPORT ncclResult_t COLLHUB_RUN(const void* send, void* recv, size_t count,
                                        ncclDataType_t datatype, ncclRedOp_t op,
                                        ncclComm_t communicator, cudaStream_t stream) {
  return collhub::guarded(
      [&] { collhub::run({send, recv, count, datatype, op, communicator, stream}); });
}

COLLHUB_EXPORT ncclResult_t COLLHUB_RELEASE(ncclComm_t communicator) {
  return collhub::guarded([&] { collhub::release(communicator); });
}

COLLHUB_EXPORT const char* COLLHUB_ERROR(void) { return collhub::last_error.c_str(); }

COLLHUB_EXPORT int COLLHUB_LEVEL(ncclComm_t communicator) {
  const auto place = collhub::registry().at(communicator, false);
  if (!place) return -1;
  // Asked for while the communicator is still being bound, it is before the first level.
  const std::unique_lock<std::mutex> lock(place->mutex, std::try_to_lock);
  return lock && place->binding ? place->binding->level() : -1;
}
}
