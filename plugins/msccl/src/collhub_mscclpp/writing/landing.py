"""Where messages land at the receiver: at their destination, or in scratch.

Messages that the receiver adds directly from the memory of the sender (`rre`, `rres`) need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_mscclpp.writing.segments import MEMORY, have_equal_offsets, memory_layouts
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


def pulled_of(work: PlanWork, block: Int64Array, types: Sequence[str]) -> BoolArray:
    """Sends and receives of messages that may be pulled: bool[rows].

    What is sent must stay until it is read: no later step writes it, but one that waits for what
    the reading block sends afterwards. `block`: int64[rows], within ranks. `types`: of channels of
    connections. O(n log n) in the chunks that steps write and send.
    """
    send, receive = work.messages.send, work.messages.receive
    is_near = np.array(types) == MEMORY
    steps = work.steps
    can = steps.is_kind(StepKind.RECV_REDUCE)[receive] & is_near[work.connection[send]]
    # A multicast puts the data into the memory of its receivers.
    can &= work.switches.multicast[send] < 0
    source = steps.src_buffer[send].astype(np.int64)
    can &= have_equal_offsets(work, receive, send, source)
    for regions in coarse_regions(work):
        candidates = np.flatnonzero(can)
        can[candidates] = _stay(work, block, regions, candidates)
    is_pulled = np.zeros(len(work.steps), np.bool_)
    is_pulled[send[can]] = is_pulled[receive[can]] = True
    return is_pulled


@dataclass(frozen=True, slots=True, eq=False)
class _Writes:
    """The last write of every chunk: its row, else -1; and the place of the one before it."""

    last: Int64Array
    place_before: Int64Array

    @classmethod
    def of(cls, work: PlanWork, regions: Regions) -> _Writes:
        """Sort the writes of all steps by chunk and time."""
        rows = np.flatnonzero(regions.destination >= 0)
        chunk = expanded_ranges(regions.destination[rows], regions.count[rows])
        writer = np.repeat(rows, regions.count[rows])
        order = np.lexsort((work.position[writer], chunk))
        chunk, writer = chunk[order], writer[order]
        last, place_before = np.full((2, regions.total), -1, np.int64)
        # Of equal chunks the later assignment stays.
        last[chunk] = writer
        repeats = np.flatnonzero(chunk[1:] == chunk[:-1])
        place_before[chunk[repeats]] = work.position[writer[repeats]]
        return cls(last, place_before)


def _stay(work: PlanWork, block: Int64Array, regions: Regions, messages: Int64Array) -> BoolArray:
    """Whether what these messages send stays until it is read."""
    writes = _Writes.of(work, regions)
    send, receive = work.messages.send[messages], work.messages.receive[messages]
    count = regions.count[send]
    chunk = expanded_ranges(regions.source[send], count)
    message = np.repeat(np.arange(len(messages)), count)
    last, position = writes.last[chunk], work.position
    sent_at = position[send[message]]
    is_late = (last >= 0) & (position[last] > sent_at)
    answers = _is_answer(work, block, last, receive[message])
    is_lost = (is_late & ~answers) | (writes.place_before[chunk] > sent_at)
    lost = np.bincount(message[is_lost], minlength=len(messages))
    return np.asarray(lost == 0, np.bool_)


def _is_answer(
    work: PlanWork, block: Int64Array, writer: Int64Array, reader: Int64Array
) -> BoolArray:
    """Whether each writer receives a message that the rank of the reader sends after its read.

    The send is in the thread block of the reader, or depends on a step that is.
    """
    steps, position = work.steps, work.position
    sent_by = np.full(len(steps) + 1, -1, np.int64)
    sent_by[work.messages.receive] = work.messages.send
    # Row -1 (no writer) is the additional last entry, which receives no message.
    answer = sent_by[writer]
    is_same = (answer >= 0) & (steps.rank[answer] == steps.rank[reader])
    parents, children = work.edges()
    every = np.arange(len(steps))
    before = np.concatenate([every, parents])
    width = int(block.max(initial=0)) + 1
    key = np.concatenate([every, children]) * width + block[before]
    order = np.lexsort((position[before], key))
    key, before = key[order], before[order]
    # The last step of the block that the answer waits for, if there is one.
    wanted = np.maximum(answer, 0) * width + block[reader]
    place = np.searchsorted(key, wanted, side="right") - 1
    is_there = (place >= 0) & (key[place] == wanted)
    is_behind = position[before[place]] >= position[reader]
    return np.asarray(is_same & is_there & is_behind, np.bool_)
