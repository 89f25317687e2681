// Where the buffers of the schedule lie in a call: in the caller's memory where that serves, else
// in the workspace, with copies before and after.
#pragma once

#include <algorithm>

#include "call.hpp"
#include "plan.hpp"

namespace collhub {

// How a call is cut; all in bytes but `block` and `rest`, which count elements.
struct Sizes {
  std::size_t block;
  std::size_t rest;         // of the vector, behind the last whole block: for NCCL's own collective
  std::size_t block_bytes;
  std::size_t part;         // of a part in the caller's memory
  std::size_t padded_part;  // of a part in whole blocks

  bool is_padded() const { return part != padded_part; }
};

// A vector runs in whole blocks and leaves a rest. Parts of ranks, which lie one behind the other
// in a larger buffer, are padded to whole blocks instead.
inline Sizes sizes_of(const Schedule& schedule, std::size_t count, std::size_t element_bytes) {
  const std::size_t blocks = as_size(schedule.blocks / schedule.parts);
  const bool is_vector = has_native(schedule) && schedule.parts == 1;
  std::size_t block = count / blocks + (!is_vector && count % blocks ? 1 : 0);
  // Where a rest is left anyway, it may take what keeps blocks on the boundaries of packs.
  const std::size_t pack = 16 / element_bytes;
  if (is_vector && count % blocks && block > pack) block -= block % pack;
  const std::size_t rest = is_vector ? count - block * blocks : 0;
  const std::size_t part = product(count - rest, element_bytes);
  const std::size_t padded_part = product(product(block, blocks), element_bytes);
  product(padded_part, as_size(schedule.parts));
  return {block, rest, block * element_bytes, part, padded_part};
}

class Places {
 public:
  Places(const Schedule& schedule, int rank, const Plan& plan, const Call& call, const Sizes& sizes)
      : layout_(schedule.memory[rank]),
        part_blocks_(as_size(schedule.blocks / schedule.parts)),
        send_(static_cast<char*>(const_cast<void*>(call.send))),
        recv_(static_cast<char*>(call.recv)),
        sizes_(sizes) {
    const bool has_promises = schedule.promise_begin[rank] != schedule.promise_begin[rank + 1];
    has_result_ = (has_promises || !schedule.states_result) && layout_.size[kOutput];
    check_given();
    if (is_shared()) choose_shared();
    else choose_apart(plan);
  }

  std::size_t workspace_bytes() const {
    return bytes(is_staged(kInput) || is_staged(kOutput) ? layout_.total : layout_.size[kScratch]);
  }

  // Fixes the places of what is not the caller's.
  void use(char* workspace) {
    const bool is_whole = is_staged(kInput) || is_staged(kOutput);
    buffers_[kScratch] = workspace + (is_whole ? bytes(layout_.begin[kScratch]) : 0);
    for (const int buffer : {kInput, kOutput})
      if (is_staged(buffer)) buffers_[buffer] = workspace + bytes(layout_.begin[buffer]);
  }

  char* buffer(int id) const { return buffers_[id]; }

  // Whether the collective promises anything to this rank.
  bool has_result() const { return has_result_; }

  void copy_in(cudaStream_t stream) const {
    if (!copies_in_) return;
    copy(kInput, buffers_[kInput], sizes_.padded_part, send_, sizes_.part, stream);
  }

  void copy_out(cudaStream_t stream) const {
    if (!copies_out_) return;
    copy(kOutput, recv_, sizes_.part, buffers_[kOutput], sizes_.padded_part, stream);
  }

 private:
  std::size_t bytes(std::int64_t blocks) const { return product(as_size(blocks), sizes_.block_bytes); }
  std::size_t parts_of(int buffer) const { return as_size(layout_.size[buffer]) / part_blocks_; }
  bool is_staged(int buffer) const { return staged_[buffer]; }

  void check_given() const {
    if (!send_ && layout_.is_defined && layout_.size[kInput])
      throw Failure(ncclInvalidArgument, "send is null on a rank whose input is read");
    if (!recv_ && has_result_)
      throw Failure(ncclInvalidArgument, "recv is null on a rank that gets a result");
  }

  // Whether the schedule is in place on this rank: one buffer is the other one, or a part of it.
  bool is_shared() const {
    const auto* begin = layout_.begin;
    const auto* size = layout_.size;
    return begin[kInput] < begin[kOutput] + size[kOutput] &&
           begin[kOutput] < begin[kInput] + size[kInput];
  }

  bool caller_overlaps() const {
    if (!send_ || !recv_) return false;
    const char* send_end = send_ + parts_of(kInput) * sizes_.part;
    const char* recv_end = recv_ + parts_of(kOutput) * sizes_.part;
    return send_ < recv_end && recv_ < send_end;
  }

  void choose_apart(const Plan& plan) {
    const bool spoils_input = plan.writes[kInput] || caller_overlaps();
    staged_[kInput] = plan.touches[kInput] && (sizes_.is_padded() || spoils_input || !send_);
    // A rank without a result works in memory that the caller did not give for that.
    staged_[kOutput] = plan.touches[kOutput] && (sizes_.is_padded() || !has_result_);
    buffers_[kInput] = send_;
    buffers_[kOutput] = recv_;
    copies_in_ = staged_[kInput] && layout_.is_defined;
    copies_out_ = staged_[kOutput] && has_result_;
  }

  void choose_shared() {
    const std::int64_t blocks = layout_.begin[kOutput] - layout_.begin[kInput];
    const std::ptrdiff_t shift = blocks * static_cast<std::ptrdiff_t>(sizes_.block_bytes);
    const bool is_usable = has_result_ && !sizes_.is_padded();
    const bool is_called_in_place = send_ && recv_ == send_ + shift;
    const bool holds_input = layout_.size[kOutput] >= layout_.size[kInput];
    if (is_usable && (is_called_in_place || (holds_input && !caller_overlaps()))) {
      buffers_[kInput] = recv_ - shift;
      buffers_[kOutput] = recv_;
      copies_in_ = layout_.is_defined && !is_called_in_place;
      return;
    }
    staged_[kInput] = staged_[kOutput] = true;
    copies_in_ = layout_.is_defined;
    copies_out_ = has_result_;
  }

  void copy(int buffer, char* target, std::size_t target_step, const char* source,
            std::size_t source_step, cudaStream_t stream) const {
    const bool is_one = !sizes_.is_padded();
    const std::size_t times = is_one ? 1 : parts_of(buffer);
    const std::size_t size = is_one ? bytes(layout_.size[buffer]) : sizes_.part;
    for (std::size_t i = 0; i < times; ++i) {
      const auto result = cudaMemcpyAsync(target + i * target_step, source + i * source_step, size,
                                          cudaMemcpyDeviceToDevice, stream);
      check(result, "copy to or from the workspace");
    }
  }

  const Memory& layout_;
  std::size_t part_blocks_;
  char* send_;
  char* recv_;
  Sizes sizes_;
  bool has_result_ = false, copies_in_ = false, copies_out_ = false;
  bool staged_[2] = {};
  char* buffers_[3] = {};
};

}  // namespace collhub
