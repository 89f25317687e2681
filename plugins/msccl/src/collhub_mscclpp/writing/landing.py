"""Choose where messages land at the receiver: at their destination, or staged in scratch.

Messages that the receiver pulls, that is adds directly from the memory of the sender (`rre`,
`rres`), do not land.
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
    """Landing ranges of messages: `buffer`, `index` (first chunk), int64[rows], for both steps.

    `is_direct`: bool[rows], receives whose data lands at its destination. `is_pulled`: bool[rows],
    sends and receives of messages that are added from the memory of the sender. `scratch`:
    int64[ranks], chunks of scratch: those of the algorithm, then stages, then unused ones.
    """

    buffer: Int64Array
    index: Int64Array
    is_direct: BoolArray
    is_pulled: BoolArray
    scratch: Int64Array


def choose_landing(work: PlanWork, is_pulled: BoolArray) -> Landing:
    """Return the range in chunks where each message arrives; the first case that applies:

    1. Pulled (`is_pulled[row]`: the receiver reads the sender's memory, `find_pulled`): the receive
       gets the source range of the send. The send gets the receive's destination, which is not
       used.
    2. Direct: the destination of the receive.
    3. Multicast: the destination; the real range is chosen later.
    4. Otherwise a new range in scratch of the receiver, after the scratch of the algorithm. These
       ranges follow one another in the order of the messages.

    A message is direct (`is_direct`) if it is received without reduction, and its destination
    buffer has the same offset on both ranks. In every supported mode (in place, out of place), the
    chunks that it writes must have no initial data and no other writer. In cases 2 to 4, send and
    receive have the same range. `scratch` of the result: the chunks of scratch of each rank after
    that.
    """
    steps, unit = work.steps, work.unit
    send, receive = work.messages.send, work.messages.receive
    is_direct = np.zeros(len(steps), np.bool_)
    target = steps.dst_buffer[receive].astype(np.int64)
    can_address = have_equal_offsets(work, send, receive, target)
    # Plain receives into chunks without data that no other step writes.
    can = work.steps.is_kind(StepKind.RECV)
    modes = zip(memory_layouts(work), find_coarse_regions(work), strict=True)
    for layout, regions in modes:
        can &= _is_untouched(work, layout, regions)
    is_direct[receive] = can[receive] & can_address
    # A multicast stores to the same range on several ranks, which is chosen later.
    is_multicast = np.zeros(len(steps), np.bool_)
    is_multicast[receive] = work.switches.multicast[send] >= 0
    staged = receive[~is_direct[receive] & ~is_pulled[receive] & ~is_multicast[receive]]
    buffer = steps.dst_buffer.astype(np.int64)
    index = steps.dst_offset // unit
    # Stages follow the scratch of the algorithm itself.
    algorithm_chunks = work.algorithm.scratch_units // unit
    start, scratch = reserve_stages(work, staged, algorithm_chunks)
    buffer[staged] = Buffer.SCRATCH
    index[staged] = start
    buffer[send] = buffer[receive]
    index[send] = index[receive]
    pulled = np.flatnonzero(is_pulled[send])
    buffer[receive[pulled]] = steps.src_buffer[send[pulled]]
    index[receive[pulled]] = steps.src_offset[send[pulled]] // unit
    return Landing(buffer, index, is_direct, is_pulled, scratch)


def choose_packet_landing(work: PlanWork) -> Landing:
    """Choose where messages arrive as packets: each in scratch of its own.

    A packet is data with flags, twice as large as the data. Packet chunk k occupies the plain
    chunks 2 k and 2 k + 1.

    - On each rank, the first packet chunk is n / 2, rounded up, for the n plain scratch
      chunks of the algorithm.
    - From there the messages have consecutive packet chunks, in the order of the messages.
    - Messages of multicasts get no chunks here: their ranges are chosen later.

    No message arrives at its destination or is pulled. `scratch` of the result is in packet
    chunks; the allocated scratch is twice as large.
    """
    steps = work.steps
    send, receive = work.messages.send, work.messages.receive
    algorithm_chunks = work.algorithm.scratch_units // work.unit
    # With an odd number of plain chunks one packet chunk is partly used and stays free.
    is_single = work.switches.multicast[send] < 0
    start, scratch = reserve_stages(work, receive[is_single], (algorithm_chunks + 1) // 2)
    buffer = np.full(len(steps), Buffer.SCRATCH, np.int64)
    index = np.zeros(len(steps), np.int64)
    index[receive[is_single]] = index[send[is_single]] = start
    nowhere = np.zeros(len(steps), np.bool_)
    return Landing(buffer, index, nowhere, nowhere, scratch)


def enlarge_scratch(work: PlanWork, landing: Landing) -> Landing:
    """Return the arrival ranges with equal scratch on all ranks: the largest of any rank.

    In every second launch the executor adds half of the sender's scratch to remote addresses, so
    unequal sizes would give wrong addresses. The size is the maximum of two numbers, which are not
    added: the largest entry of `landing.scratch`, and the largest number of plain chunks in the
    algorithm's own scratch on any rank. Entries of `landing.scratch` already include that scratch,
    but a packet chunk counts as one chunk there. `landing` is not changed.
    """
    algorithm_chunks = work.algorithm.scratch_units // work.unit
    largest = max(int(algorithm_chunks.max()), int(landing.scratch.max()))
    return replace(landing, scratch=np.full_like(landing.scratch, largest))


def reserve_stages(
    work: PlanWork, receives: Int64Array, first: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Reserve a range of consecutive chunks for the data of each receive, on the receiving rank.

    `receives`: rows of steps. `first`: first free chunk of each rank; it is not changed. The ranges
    of a rank begin at `first`, in the order of `receives`, without gaps. A range has the units of
    the step divided by `work.unit` (units per chunk), rounded down.

    Returns the first chunk of each receive, and the first free chunk of each rank afterwards (a
    rank without receives keeps its value), both int64.
    """
    steps = work.steps
    rank = steps.rank[receives]
    count = steps.count[receives] // work.unit
    # Stages are numbered separately on each rank.
    by_rank = np.argsort(rank, kind="stable")
    sums = row_pointer(count[by_rank])
    needed = np.bincount(rank, weights=count, minlength=steps.num_ranks).astype(np.int64)
    before_rank = row_pointer(needed)[:-1]
    start = np.zeros(len(receives), np.int64)
    start[by_rank] = sums[:-1] - before_rank[rank[by_rank]]
    return start + first[rank], first + needed


def find_coarse_regions(work: PlanWork) -> Iterator[Regions]:
    """Yield the regions that every step reads and writes, in chunks, for each claimed mode."""
    for layout in memory_layouts(work):
        yield find_regions(work.algorithm, layout, np.ones(len(work.steps), np.bool_), work.unit)


def _is_untouched(work: PlanWork, layout: MemoryLayout, regions: Regions) -> BoolArray:
    """Return which rows write only chunks without initial data and without other writers.

    bool[rows], False for rows that write no data. All defined inputs count as initial data. Chunks
    are those of `layout`, in which buffers may share memory; `regions`: ranges of each row in it.
    """
    uses = np.zeros(layout.total + 1, np.int64)
    ranks = np.flatnonzero(work.algorithm.collective.defined_inputs())
    starts = layout.base[ranks, Buffer.INPUT]
    # Initial data may still be read, so it counts as a use.
    uses[expanded_ranges(starts, layout.size[ranks, Buffer.INPUT])] = 1
    writes = np.flatnonzero(regions.destination >= 0)
    np.add.at(uses, expanded_ranges(regions.destination[writes], regions.count[writes]), 1)
    # A range contains a chunk with more than one use if the running sum grows over it.
    crowded = row_pointer((uses > 1).astype(np.int64))
    start = np.maximum(regions.destination, 0)
    is_single: BoolArray = crowded[start] == crowded[start + regions.count]
    return is_single & (regions.destination >= 0)


def find_pulled(work: PlanWork, block: Int64Array, types: Sequence[str]) -> BoolArray:
    """Return which sends and receives carry a message that the receiver may pull: bool[rows].

    To pull means to read the data directly from the sender's memory and add it. True for both rows
    of a message if all of this holds in every mode that the collective supports:

    - The receive is a reducing receive over a memory channel, and the send is no multicast.
    - The receiver computes the right address of the source (`have_equal_offsets`).
    - No step after the send writes the source, except the last write of a chunk, if that write
      waits for a message that the reading thread block sends at or after the read (`_is_answer`).

    `block`: int64[rows], thread block within the rank. `types`: channel type of every connection.
    Cost: O(n log n) in the chunks that steps write and send.
    """
    send, receive = work.messages.send, work.messages.receive
    is_memory = np.array(types) == MEMORY
    steps = work.steps
    can = steps.is_kind(StepKind.RECV_REDUCE)[receive] & is_memory[work.connection[send]]
    # A multicast stores the data in the memory of its receivers.
    can &= work.switches.multicast[send] < 0
    source = steps.src_buffer[send].astype(np.int64)
    can &= have_equal_offsets(work, receive, send, source)
    for regions in find_coarse_regions(work):
        candidates = np.flatnonzero(can)
        can[candidates] = _are_unchanged(work, block, regions, candidates)
    is_pulled = np.zeros(len(work.steps), np.bool_)
    is_pulled[send[can]] = is_pulled[receive[can]] = True
    return is_pulled


def _are_unchanged(
    work: PlanWork, block: Int64Array, regions: Regions, messages: Int64Array
) -> BoolArray:
    """Return whether the source of each message stays unchanged until it is read: bool[messages].

    The receiver reads the source directly from the sender's memory, at some time after the send.
    The result is True if each chunk of the source fulfils one of these conditions:

    - No step after the send writes the chunk.
    - Exactly one step after the send writes it, and this write must wait until the receiver has
      read the chunk (`_is_answer`).

    `messages`: indices of `work.messages`. `regions`: chunks that each row reads and writes.
    `block`: thread block of each row. "After" is by `work.position`.
    """
    position = work.position
    # By chunk: row of its last write in the order of execution, and position of the write before
    # it; -1 for none.
    rows = np.flatnonzero(regions.destination >= 0)
    written = expanded_ranges(regions.destination[rows], regions.count[rows])
    writer = np.repeat(rows, regions.count[rows])
    order = np.lexsort((position[writer], written))
    written, writer = written[order], writer[order]
    last_write, place_before = np.full((2, regions.total), -1, np.int64)
    # For equal chunks the last assignment counts.
    last_write[written] = writer
    repeats = np.flatnonzero(written[1:] == written[:-1])
    place_before[written[repeats]] = position[writer[repeats]]

    send, receive = work.messages.send[messages], work.messages.receive[messages]
    count = regions.count[send]
    chunk = expanded_ranges(regions.source[send], count)
    message = np.repeat(np.arange(len(messages)), count)
    last = last_write[chunk]
    sent_at = position[send[message]]
    is_rewritten = (last >= 0) & (position[last] > sent_at)
    answers = _is_answer(work, block, last, receive[message])
    is_lost = (is_rewritten & ~answers) | (place_before[chunk] > sent_at)
    lost = np.bincount(message[is_lost], minlength=len(messages))
    return np.asarray(lost == 0, np.bool_)


def _is_answer(
    work: PlanWork, block: Int64Array, writer: Int64Array, reader: Int64Array
) -> BoolArray:
    """Return whether each write must wait until a read on another rank is over: bool[pairs].

    `writer`, `reader`: rows of the write (-1 for none) and of the read of each pair. `block`:
    thread block of every row. A pair is True if all of these hold:

    - The write receives a message.
    - The rank of the read sends this message.
    - The SEND of the message, or a step on which the SEND depends directly, is in the thread block
      of the read, and is the read itself or a later step.

    A pair without a write is False.
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
    # The last step of the reading block on which the answer depends, if any.
    requested_key = np.maximum(answer, 0) * width + block[reader]
    index = np.searchsorted(key, requested_key, side="right") - 1
    has_step = (index >= 0) & (key[index] == requested_key)
    is_after = position[before[index]] >= position[reader]
    return np.asarray(is_same & has_step & is_after, np.bool_)
