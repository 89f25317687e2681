// The plan of one rank, in blocks: built once, it serves calls of every size and element type.
#pragma once

#include <utility>
#include <vector>

#include "jobs.hpp"
#include "schedule.hpp"

namespace collhub {

// What one lane does in one level: a group of messages, then batches of copies and reductions.
struct Stage {
  int level;
  int lane;
  const Record* first_message;
  const Record* last_message;
  std::vector<Batch> batches;

  bool has_messages() const { return first_message != last_message; }
};

struct Plan {
  std::vector<Stage> stages;
  // By buffer: whether a record touches it, and whether one writes it.
  bool touches[3] = {};
  bool writes[3] = {};
};

inline void note_buffers(Plan& plan, const Record& record) {
  if (record.kind != kRecv) plan.touches[record.source_buffer] = true;
  if (record.kind == kSend) return;
  plan.touches[record.target_buffer] = true;
  plan.writes[record.target_buffer] = true;
}

// The records of one (level, lane) from `next` on, which it moves behind them.
inline Stage stage_of(const Memory& memory, const Record*& next, const Record* end) {
  Stage stage{next->level, next->lane, next, next, {}};
  const auto is_here = [&] {
    return next != end && next->level == stage.level && next->lane == stage.lane;
  };
  while (is_here() && next->kind < kCopy) ++next;
  stage.last_message = next;
  Fusion fusion(memory);
  for (; is_here(); ++next) fusion.add(*next);
  stage.batches = fusion.take();
  return stage;
}

inline Plan plan_of(const Schedule& schedule, int rank) {
  Plan plan;
  const Record* next = schedule.records + schedule.record_begin[rank];
  const Record* end = schedule.records + schedule.record_begin[rank + 1];
  for (const Record* record = next; record != end; ++record) note_buffers(plan, *record);
  while (next != end) plan.stages.push_back(stage_of(schedule.memory[rank], next, end));
  return plan;
}

}  // namespace collhub
