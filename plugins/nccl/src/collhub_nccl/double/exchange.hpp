// The sends and receives of one group of one rank, on one communicator of the test double.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "world.hpp"

struct Operation {
  bool is_send;
  int peer;
  void* memory;
  std::size_t count;
  ncclDataType_t type;
  ncclComm* communicator;
  cudaStream_t stream;
  bool is_begun = false;  // of a send: it stands in its slot; of a receive: its send is accepted
  bool is_done = false;
  std::size_t moved = 0;  // bytes, where it goes in pieces
};

inline std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

inline std::chrono::duration<double> time_limit() {
  const char* text = std::getenv("COLLHUB_DOUBLE_TIMEOUT_S");
  return std::chrono::duration<double>(text ? std::atof(text) : 20.0);
}

// Runs until all are done, one of them is wrong, or nothing has moved for too long.
class Exchange {
 public:
  Exchange(World& world, int rank, std::vector<Operation> operations)
      : world_(world), rank_(rank), operations_(std::move(operations)) {}

  // Why `run` failed.
  const std::string& error() const { return error_; }

  ncclResult_t run() {
    World::Lock lock(world_);
    if (const ncclResult_t result = check_overlaps(); result != ncclSuccess)
      return stop(result);
    const auto limit = std::chrono::duration_cast<World::Clock::duration>(time_limit());
    const auto deadline = World::Clock::now() + limit;
    for (bool has_time = true;;) {
      bool has_moved = false;
      const ncclResult_t result = move(lock, has_moved);
      if (result != ncclSuccess) return stop(result);
      if (has_moved) world_.notify();
      if (is_done()) return ncclSuccess;
      if (has_moved) continue;
      if (world_.state().has_failed)
        return stop(fail(ncclRemoteError, "another rank failed while " + waiting()));
      if (!has_time) return stop(fail(ncclTimeout, "deadlock: " + waiting()));
      has_time = world_.wait_until(deadline);
    }
  }

 private:
  ncclResult_t fail(ncclResult_t result, const std::string& message) {
    error_ = message;
    return result;
  }

  // The first open operation of every peer and direction goes on as far as it can.
  ncclResult_t move(World::Lock& lock, bool& has_moved) {
    std::vector<bool> is_blocked(2 * static_cast<std::size_t>(world_.ranks()));
    for (Operation& operation : operations_) {
      const std::size_t way = 2 * static_cast<std::size_t>(operation.peer) + operation.is_send;
      if (operation.is_done || is_blocked[way]) continue;
      ncclResult_t result = ncclSuccess;
      has_moved |= operation.is_send ? send(operation) : receive(operation, lock, result);
      if (result != ncclSuccess) return result;
      is_blocked[way] = !operation.is_done;
    }
    return ncclSuccess;
  }

  bool send(Operation& operation) {
    Slot& slot = world_.slot(rank_, operation.peer);
    if (!operation.is_begun) {
      // A message before it still stands there.
      if (slot.is_posted) return false;
      slot.is_taken = slot.wants_pieces = slot.is_done = false;
      slot.piece = 0;
      slot.type = operation.type;
      slot.owner = getpid();
      slot.source = operation.memory;
      slot.count = operation.count;
      slot.is_posted = operation.is_begun = true;
      return true;
    }
    if (slot.is_done) {
      slot.is_posted = false;
      operation.is_done = true;
      return true;
    }
    if (!slot.wants_pieces || slot.piece) return false;
    slot.piece = std::min<std::uint64_t>(size_of(operation) - operation.moved, kPieceBytes);
    const char* source = static_cast<const char*>(operation.memory);
    std::memcpy(slot.bytes, source + operation.moved, slot.piece);
    operation.moved += slot.piece;
    return true;
  }

  bool receive(Operation& operation, World::Lock& lock, ncclResult_t& result) {
    Slot& slot = world_.slot(operation.peer, rank_);
    // What stands there and is done is the message before.
    if (!slot.is_posted || slot.is_done) return false;
    if (!operation.is_begun) {
      result = accept(operation, slot);
      if (result != ncclSuccess) return false;
      operation.is_begun = true;
      if (size_of(operation) == 0) return finish(operation, slot);
      if (slot.owner == getpid()) return copy(operation, slot, lock);
      return slot.wants_pieces = true;
    }
    if (!slot.piece) return false;
    std::memcpy(static_cast<char*>(operation.memory) + operation.moved, slot.bytes, slot.piece);
    operation.moved += slot.piece;
    slot.piece = 0;
    return operation.moved < size_of(operation) || finish(operation, slot);
  }

  ncclResult_t accept(const Operation& operation, const Slot& slot) {
    if (slot.count == operation.count && slot.type == operation.type) return ncclSuccess;
    const std::string other = slot.type != operation.type ? " elements of another type" : "";
    return fail(ncclInvalidUsage,
                title(operation) + " meets a send of " + std::to_string(slot.count) + other);
  }

  static bool finish(Operation& operation, Slot& slot) {
    operation.is_done = slot.is_done = true;
    return true;
  }

  // Without the lock, which other ranks need meanwhile.
  bool copy(Operation& operation, Slot& slot, World::Lock& lock) {
    slot.is_taken = true;
    const void* source = slot.source;
    lock.unlock();
    std::memcpy(operation.memory, source, size_of(operation));
    lock.lock();
    return finish(operation, slot);
  }

  // The caller may free its memory at once: what nobody reads yet is withdrawn, what is being read
  // is awaited.
  ncclResult_t stop(ncclResult_t result) {
    world_.state().has_failed = true;
    world_.notify();
    for (const Operation& operation : operations_) {
      if (!operation.is_send || !operation.is_begun || operation.is_done) continue;
      Slot& slot = world_.slot(rank_, operation.peer);
      while (slot.is_taken && !slot.is_done)
        world_.wait_until(World::Clock::now() + std::chrono::seconds(1));
      slot.is_posted = false;
    }
    return result;
  }

  ncclResult_t check_overlaps() {
    std::vector<const Operation*> sorted;
    for (const Operation& operation : operations_)
      if (operation.count) sorted.push_back(&operation);
    std::sort(sorted.begin(), sorted.end(),
              [](auto* one, auto* other) { return one->memory < other->memory; });
    // Those that end last so far, of all and of the receives.
    const Operation *reaching = nullptr, *writing = nullptr;
    for (const Operation* operation : sorted) {
      const Operation* before = operation->is_send ? writing : reaching;
      if (before && end_of(*before) > static_cast<const char*>(operation->memory))
        return fail(ncclInvalidUsage, title(*operation) + " and " + title(*before) +
                                          " touch the same memory in one group");
      if (!reaching || end_of(*operation) > end_of(*reaching)) reaching = operation;
      if (!operation->is_send && (!writing || end_of(*operation) > end_of(*writing)))
        writing = operation;
    }
    return ncclSuccess;
  }

  static std::size_t size_of(const Operation& operation) {
    return operation.count * bytes_of(operation.type);
  }

  static const char* end_of(const Operation& operation) {
    return static_cast<const char*>(operation.memory) + size_of(operation);
  }

  bool is_done() const {
    return std::all_of(operations_.begin(), operations_.end(),
                       [](const Operation& operation) { return operation.is_done; });
  }

  static std::string title(const Operation& operation) {
    return std::string(operation.is_send ? "the send to" : "the receive from") + " rank " +
           std::to_string(operation.peer) + " of " + std::to_string(operation.count) + " elements";
  }

  std::string waiting() const {
    const std::string who = "rank " + std::to_string(rank_) + " waits";
    for (const Operation& operation : operations_)
      if (!operation.is_done) return who + ": " + title(operation) + " was never matched";
    return who;
  }

  World& world_;
  int rank_;
  std::vector<Operation> operations_;
  std::string error_;
};
