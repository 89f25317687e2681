"""Where messages land: in the place that they are meant for, or in scratch of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from collhub_mscclpp.writing.addresses import have_equal_offsets, memory_layouts
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import BoolArray, Int64Array, expanded_ranges, row_pointer
from hub_core.model import Buffer, MemoryLayout, StepKind
from hub_core.verification import Regions, find_regions


@dataclass(frozen=True, slots=True, eq=False)
class Landing:
    """`buffer`, `index`: int64[rows], where the message of a send or a receive lands, in chunks.

    `is_direct`: bool[rows], receives that find their data in place. `is_pulled`: bool[rows], sends
    and receives of what stays with the sender, from where it is added. `scratch`: int64[ranks],
    chunks of scratch, those of the algorithm first, unused ones last.
    """

    buffer: Int64Array
    index: Int64Array
    is_direct: BoolArray
    is_pulled: BoolArray
    scratch: Int64Array


def landing_of(work: PlanWork, is_pulled: BoolArray) -> Landing:
    """Let messages land in place where nobody else touches it before, else staged in scratch."""
    steps, unit = work.steps, work.unit
    send, receive = work.messages.send, work.messages.receive
    is_direct = np.zeros(len(steps), np.bool_)
    target = steps.dst_buffer[receive].astype(np.int64)
    can_address = have_equal_offsets(work, send, receive, target)
    is_direct[receive] = _can_be_direct(work)[receive] & can_address
    # What switches store has one place on several ranks, which is chosen later.
    is_multicast = np.zeros(len(steps), np.bool_)
    is_multicast[receive] = work.switches.multicast[send] >= 0
    staged = receive[~is_direct[receive] & ~is_pulled[receive] & ~is_multicast[receive]]
    buffer = steps.dst_buffer.astype(np.int64)
    index = steps.dst_offset // unit
    # Stages stand behind what the algorithm itself keeps in scratch.
    own = work.algorithm.scratch_units // unit
    start, scratch = stages(work, staged, own)
    buffer[staged] = Buffer.SCRATCH
    index[staged] = start
    buffer[send] = buffer[receive]
    index[send] = index[receive]
    pulled = np.flatnonzero(is_pulled[send])
    buffer[receive[pulled]] = steps.src_buffer[send[pulled]]
    index[receive[pulled]] = steps.src_offset[send[pulled]] // unit
    return Landing(buffer, index, is_direct, is_pulled, scratch)


def packet_landing_of(work: PlanWork) -> Landing:
    """Let all messages land as packets, in scratch behind that of the algorithm.

    Packet k lies at twice its index, so that the first one behind n plain chunks is n / 2; scratch
    of packets is twice as large as it says.
    """
    steps = work.steps
    send, receive = work.messages.send, work.messages.receive
    own = work.algorithm.scratch_units // work.unit
    # An odd chunk of the algorithm ends within a packet chunk, which stays free.
    is_single = work.switches.multicast[send] < 0
    start, scratch = stages(work, receive[is_single], (own + 1) // 2)
    buffer = np.full(len(steps), Buffer.SCRATCH, np.int64)
    index = np.zeros(len(steps), np.int64)
    index[receive[is_single]] = index[send[is_single]] = start
    nowhere = np.zeros(len(steps), np.bool_)
    return Landing(buffer, index, nowhere, nowhere, scratch)


def with_equal_scratch(work: PlanWork, landing: Landing) -> Landing:
    """The same with the largest scratch of any rank on all of them.

    In every second launch the executor adds half of the *sender's* scratch to remote addresses.
    """
    own = work.algorithm.scratch_units // work.unit
    largest = max(int(own.max()), int(landing.scratch.max()))
    return replace(landing, scratch=np.full_like(landing.scratch, largest))


def stages(
    work: PlanWork, receives: Int64Array, first: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(first chunk for each of these receives, end on each rank), from `first` of each rank on."""
    steps = work.steps
    rank = steps.rank[receives]
    count = steps.count[receives] // work.unit
    # Each rank counts its stages from its own scratch on.
    by_rank = np.argsort(rank, kind="stable")
    sums = row_pointer(count[by_rank])
    needed = np.bincount(rank, weights=count, minlength=steps.num_ranks).astype(np.int64)
    before_rank = row_pointer(needed)[:-1]
    start = np.zeros(len(receives), np.int64)
    start[by_rank] = sums[:-1] - before_rank[rank[by_rank]]
    return start + first[rank], first + needed


def coarse_regions(work: PlanWork) -> Iterator[Regions]:
    """What every step reads and writes, in chunks, in each mode that the algorithm claims."""
    for layout in memory_layouts(work):
        yield find_regions(work.algorithm, layout, np.ones(len(work.steps), np.bool_), work.unit)


def _can_be_direct(work: PlanWork) -> BoolArray:
    """Plain receives into what holds no data before, and what they alone write: bool[rows]."""
    can = work.steps.is_kind(StepKind.RECV)
    modes = zip(memory_layouts(work), coarse_regions(work), strict=True)
    for layout, regions in modes:
        can &= _is_untouched(work, layout, regions)
    return can


def _is_untouched(work: PlanWork, layout: MemoryLayout, regions: Regions) -> BoolArray:
    """Rows that write where no data lies before and no other row writes."""
    uses = np.zeros(layout.total + 1, np.int64)
    ranks = np.flatnonzero(work.algorithm.collective.defined_inputs())
    starts = layout.base[ranks, Buffer.INPUT]
    # Data that is there before may still be read: that counts as a use.
    uses[expanded_ranges(starts, layout.size[ranks, Buffer.INPUT])] = 1
    writes = np.flatnonzero(regions.destination >= 0)
    np.add.at(uses, expanded_ranges(regions.destination[writes], regions.count[writes]), 1)
    # More than one use anywhere in a range shows in the running sum.
    crowded = row_pointer((uses > 1).astype(np.int64))
    start = np.maximum(regions.destination, 0)
    is_alone: BoolArray = crowded[start] == crowded[start + regions.count]
    return is_alone & (regions.destination >= 0)
