// What schedule.cpp holds: the records of every rank, its memory, and what the collective promises,
// all in blocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collhub {

// Counts, offsets and ranks of a schedule are never negative.
constexpr std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

enum Kind : std::uint8_t { kSend = 0, kRecv = 1, kCopy = 2, kReduce = 3 };
enum BufferId : std::uint8_t { kInput = 0, kOutput = 1, kScratch = 2 };

// Sorted by level and lane; of those, messages first, in the same order at both ends, then what is
// done on the rank itself. Level 0 has no messages. A message has the same level and lane at both
// ends, no two accesses of a level's messages are in conflict, and no two accesses of two lanes,
// but for level 0, which is wholly in lane 0 and done before lanes begin.
struct Record {
  Kind kind;
  std::uint8_t source_buffer;
  std::uint8_t target_buffer;
  std::uint8_t lane;
  std::int32_t level;
  std::int32_t peer;  // -1 for local records
  std::int32_t source_offset;
  std::int32_t target_offset;
  std::int32_t count;
};
static_assert(sizeof(Record) == 24, "records are packed");

// Where INPUT, OUTPUT and SCRATCH begin in a rank's memory, and their sizes; in place, INPUT and
// OUTPUT overlap.
struct Memory {
  std::int64_t begin[3];
  std::int64_t size[3];
  std::int64_t total;
  bool is_defined;  // whether INPUT holds data before
};

// `count` blocks of OUTPUT from `offset` on hold those of the INPUT of rank `source` from
// `source_offset` on; of all ranks, reduced, where `source` is -1. Several promises for one block
// are reduced together; what none names is free.
struct Promise {
  std::int64_t offset;
  std::int32_t source;
  std::int64_t source_offset;
  std::int64_t count;
};

enum class Native { kNone, kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce };

struct Schedule {
  const char* collective;
  Native native;  // NCCL's own collective of the same meaning
  int ranks;
  std::int64_t blocks;  // of the full buffer
  std::int64_t parts;   // of the full buffer, as large as the `count` of a call
  int lanes;
  int root;             // -1 where there is none
  bool is_in_place;
  bool is_reducing;      // whether every stated block of OUTPUT is reduced over all ranks
  bool states_result;    // whether there are promises
  const char* reduce_op;
  double bus_factor;     // of nccl-tests; 0 where it is not defined
  const Record* records;
  const std::int64_t* record_begin;  // of every rank, and the end
  const Memory* memory;
  const Promise* promises;
  const std::int64_t* promise_begin;
};

extern const Schedule kSchedule;

}  // namespace collhub
