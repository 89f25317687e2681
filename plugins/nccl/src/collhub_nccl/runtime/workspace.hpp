// Memory of a binding for SCRATCH and for buffers that are not the caller's; it grows when needed.
#pragma once

#include <algorithm>
#include <vector>

#include "calls.hpp"

namespace collhub {

class Workspace {
 public:
  explicit Workspace(ncclComm_t communicator) : communicator_(communicator) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    for (const Block& block : blocks_) {
      if (block.handle) ncclCommDeregister(communicator_, block.handle);
      ncclMemFree(block.memory);
    }
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
  struct Block {
    void* memory;
    void* handle;
  };

  // Smaller memory stays: queued work and captured graphs hold its address. As every block is at
  // least twice as large as the last, all together take less than twice the largest.
  void grow(std::size_t bytes) {
    const std::size_t wanted = std::max(bytes, 2 * size_);
    Block block{};
    check(ncclMemAlloc(&block.memory, wanted), "ncclMemAlloc of the workspace");
    blocks_.push_back(block);
    size_ = wanted;
    const auto result =
        ncclCommRegister(communicator_, block.memory, wanted, &blocks_.back().handle);
    finish(result, "ncclCommRegister", communicator_);
  }

  ncclComm_t communicator_;
  std::size_t size_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace collhub
