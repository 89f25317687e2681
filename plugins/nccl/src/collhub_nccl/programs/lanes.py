"""Find the channels of an algorithm that share no memory, and can therefore run concurrently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_execution import LevelledProgram

from hub_core.columns import BoolArray, Int64Array, connected_parts, expanded_ranges
from hub_core.model import Algorithm, Buffer

# Maximum addresses to analyse; larger programs get one lane instead of gigabytes of columns.
_MAX_ADDRESSES = 50_000_000


@dataclass(frozen=True, slots=True)
class LaneChanges:
    """Changes of a program's records by lanes; one entry per record, all int64.

    `lane`: numbered from 0 without gaps. `src_offset`, `dst_offset`: as in the program, except
    slots that levelling placed in SCRATCH: levels of one lane share slots, levels of different
    lanes cannot, so every lane gets separate slots. `scratch`: int64[num_ranks], blocks of SCRATCH
    including them.
    """

    lane: Int64Array
    src_offset: Int64Array
    dst_offset: Int64Array
    scratch: Int64Array

    @classmethod
    def single(cls, program: LevelledProgram) -> LaneChanges:
        """Return the assignment of all records to lane 0, so that a rank executes them in order.

        Offsets and SCRATCH are those of the program, whose arrays are shared.
        """
        scratch = program.layout.size[:, Buffer.SCRATCH]
        nothing = np.zeros(len(program), np.int64)
        return cls(nothing, program.src_offset, program.dst_offset, scratch)


def assign_lanes(program: LevelledProgram, algorithm: Algorithm, max_lanes: int) -> LaneChanges:
    """Assign the channels of an algorithm to at most `max_lanes` lanes, which run at the same time.

    Two channels are in one group if both access the same block of memory, and a record writes this
    block. The channels of the two sides of a message are in one group, too. If A and B, and B and C
    are in one group, so are A and C. Groups with records above level 0 are numbered from 0 by their
    lowest channel. Group number g gets lane g mod `max_lanes`. Records of level 0 (local work
    before all messages) belong to lane 0.

    There is one lane, with unchanged offsets, in three cases: `max_lanes` is 1, there is only one
    channel, or all records have together more than `_MAX_ADDRESSES` / 2 blocks.

    The result has the lane and both offsets of each record, and the SCRATCH blocks of each rank.
    Offsets in SCRATCH change, because each lane gets separate slots there (`_separate_slots`).
    """
    channels, channel = np.unique(algorithm.steps.channel[program.row], return_inverse=True)
    algorithm_blocks = algorithm.scratch_units // program.block_units
    touched = _find_accesses(program, algorithm_blocks)
    if max_lanes == 1 or len(channels) < 2 or touched is None:
        return LaneChanges.single(program)
    record, address, is_write = touched
    # Accesses to blocks that some record writes; each access joins the next one to its block.
    is_written = np.isin(address, np.unique(address[is_write == 1]))
    order = np.argsort(address[is_written], kind="stable")
    ordered_address = address[is_written][order]
    ordered_channel = channel[record[is_written]][order]
    is_same = ordered_address[1:] == ordered_address[:-1]
    send, receive = program.message_ends()
    first = np.concatenate([ordered_channel[:-1][is_same], channel[send]])
    second = np.concatenate([ordered_channel[1:][is_same], channel[receive]])
    root = connected_parts(first, second, len(channels))[channel]
    counted = np.unique(root[program.level > 0])
    number = np.where(np.isin(root, counted), np.searchsorted(counted, root), 0)
    lane = number % max_lanes
    return _separate_slots(program, lane, algorithm_blocks)


def _find_accesses(
    program: LevelledProgram, algorithm_blocks: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array] | None:
    """Return the accesses of records to blocks of memory: (record, address, is_write).

    All three are int64. A record has one entry per block that it reads, and one per block that it
    writes. First come all reads, then all writes, each by record, then by address. `is_write` is 1
    for a write, 0 for a read. Addresses are in one numbering for the memory of all ranks.

    Omitted are records of level 0, and accesses to slots, i.e. blocks of SCRATCH that levelling
    adds after those of the algorithm. `algorithm_blocks`: number of the algorithm's blocks of
    SCRATCH by rank. Returns None if twice the blocks of all records, also of omitted ones, are
    more than `_MAX_ADDRESSES`.
    """
    if 2 * int(program.count.sum()) > _MAX_ADDRESSES:
        return None
    sides = []
    in_slot = _find_slot_uses(program, algorithm_blocks)
    for is_write, first in enumerate(program.addresses()):
        used = np.flatnonzero((first >= 0) & (program.level > 0) & ~in_slot[is_write])
        count = program.count[used]
        record = np.repeat(used, count)
        address = expanded_ranges(first[used], count)
        sides.append(np.stack([record, address, np.full_like(record, is_write)]))
    record, address, is_write = np.concatenate(sides, axis=1)
    return record, address, is_write


def _find_slot_uses(
    program: LevelledProgram, algorithm_blocks: Int64Array
) -> tuple[BoolArray, BoolArray]:
    """Return masks of the records whose source, and whose destination, is a slot of levelling.

    Slots are blocks of SCRATCH that levelling adds after those of the algorithm itself, whose
    number by rank is `algorithm_blocks`.
    """
    first = algorithm_blocks[program.rank]
    source = (program.src_buffer == Buffer.SCRATCH) & (program.src_offset >= first)
    destination = (program.dst_buffer == Buffer.SCRATCH) & (program.dst_offset >= first)
    return source, destination


def _separate_slots(
    program: LevelledProgram, lane: Int64Array, algorithm_blocks: Int64Array
) -> LaneChanges:
    """Return the lanes of all records, with separate SCRATCH slots for each lane.

    Slots are the blocks of SCRATCH after those of the algorithm itself (`algorithm_blocks`, by
    rank), which levelling added. `lane`: lane of every record. On each rank, the slots that one
    lane uses are moved together: those of lane 0 to the first block after the algorithm's blocks,
    those of each other lane directly after those of the lane before. A lane without slots takes no
    space. All other offsets are kept.

    In the result, records of level 0, which run before all messages, belong to lane 0, but keep the
    slots of their given lane. `scratch` is, for each rank, the end of the last slots.
    """
    num_lanes = int(lane.max(initial=0)) + 1
    group = program.rank * num_lanes + lane
    num_groups = program.num_ranks * num_lanes
    # Per (rank, lane): first block of its slots, and the block after the last.
    first = np.full(num_groups, np.iinfo(np.int64).max)
    last = np.zeros(num_groups, np.int64)
    offsets = program.src_offset, program.dst_offset
    for in_slot, offset in zip(_find_slot_uses(program, algorithm_blocks), offsets, strict=True):
        np.minimum.at(first, group[in_slot], offset[in_slot])
        np.maximum.at(last, group[in_slot], (offset + program.count)[in_slot])
    size = np.maximum(last - first, 0).reshape(-1, num_lanes)
    slot_stops = algorithm_blocks[:, None] + np.cumsum(size, axis=1)
    shift = ((slot_stops - size).ravel() - first)[group]
    moved = []
    for in_slot, offset in zip(_find_slot_uses(program, algorithm_blocks), offsets, strict=True):
        moved.append(np.where(in_slot, offset + shift, offset))
    source, destination = moved
    # Records before all messages belong to the first lane, and run before the lanes begin.
    in_lanes = np.where(program.level > 0, lane, 0)
    return LaneChanges(in_lanes, source, destination, slot_stops[:, -1])
