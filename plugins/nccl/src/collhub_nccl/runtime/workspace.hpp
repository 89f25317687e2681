// Memory of a binding for SCRATCH and for buffers that are not the caller's; it grows when needed.
#pragma once

#include <algorithm>
#include <vector>

#include "memory.hpp"

namespace collhub {

class Workspace {
 public:
  explicit Workspace(ncclComm_t communicator) : communicator_(communicator) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    for (const DeviceBuffer& block : blocks_) give_back(block, communicator_);
  }

  // Leaves the memory to what may still write to it.
  void abandon() { blocks_.clear(); }

  bool has(std::size_t bytes) const { return bytes <= size_; }

  // Memory of at least so many bytes.
  char* at_least(std::size_t bytes) {
    if (!has(bytes)) grow(bytes);
    return blocks_.empty() ? nullptr : static_cast<char*>(blocks_.back().memory);
  }

 private:
  // Smaller memory stays: queued work and captured graphs hold its address. As every block is at
  // least twice as large as the last, all together take less than twice the largest.
  void grow(std::size_t bytes) {
    const std::size_t wanted = std::max(bytes, 2 * size_);
    blocks_.push_back(allocate(wanted, "allocation of the workspace"));
    size_ = wanted;
    enroll(blocks_.back(), wanted, communicator_);
  }

  ncclComm_t communicator_;
  std::size_t size_ = 0;
  std::vector<DeviceBuffer> blocks_;
};

}  // namespace collhub
