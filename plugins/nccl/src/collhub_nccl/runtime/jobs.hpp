// What a rank does on its own between messages: copies and reductions, fused to one pass over
// memory for each target, and batches of them that are one launch.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule.hpp"

namespace collhub {

// Bounds on what a kernel takes as its arguments, of which CUDA allows 4 KiB.
constexpr int kMostSources = 8, kMostJobs = 16;

// `count` blocks of a buffer from `offset` on; `address`: where they lie in the rank's memory.
struct Region {
  int buffer;
  std::int64_t offset;
  std::int64_t count;
  std::int64_t address;

  bool is_same(const Region& other) const {
    return address == other.address && count == other.count;
  }
  bool overlaps(const Region& other) const {
    return address < other.address + other.count && other.address < address + count;
  }
};

// target := [target op] source op source op ..., from left to right.
struct Job {
  Region target;
  bool reads_target;
  std::vector<Region> sources;
};

// Jobs of which none touches what another one writes: they run at once.
using Batch = std::vector<Job>;

// Collects the local records of a stage, in their order, in as few batches as that order allows.
class Fusion {
 public:
  explicit Fusion(const Memory& memory) : memory_(memory) {}

  void add(const Record& record) {
    const Region source = region(record.source_buffer, record.source_offset, record.count);
    const Region target = region(record.target_buffer, record.target_offset, record.count);
    if (record.kind == kReduce && extend(target, source)) return;
    if (!is_independent(target, source)) batches_.emplace_back();
    batches_.back().push_back({target, record.kind == kReduce, {source}});
  }

  std::vector<Batch> take() { return std::move(batches_); }

 private:
  Region region(int buffer, std::int64_t offset, std::int64_t count) const {
    return {buffer, offset, count, memory_.begin[buffer] + offset};
  }

  // One more source of a job in the last batch. No job of a batch touches the target of another
  // one, so that only the new source can be in conflict.
  bool extend(const Region& target, const Region& source) {
    if (batches_.empty() || is_written(source)) return false;
    for (Job& job : batches_.back()) {
      if (!job.target.is_same(target)) continue;
      if (job.sources.size() == kMostSources) return false;
      job.sources.push_back(source);
      return true;
    }
    return false;
  }

  bool is_independent(const Region& target, const Region& source) const {
    if (batches_.empty() || batches_.back().size() == kMostJobs) return false;
    if (is_written(source) || is_written(target)) return false;
    for (const Job& job : batches_.back())
      for (const Region& read : job.sources)
        if (read.overlaps(target)) return false;
    return true;
  }

  bool is_written(const Region& region) const {
    for (const Job& job : batches_.back())
      if (job.target.overlaps(region)) return true;
    return false;
  }

  const Memory& memory_;
  std::vector<Batch> batches_;
};

}  // namespace collhub
