"""Messages that their receiver adds straight from the memory of the sender: `rre`, `rres`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.writing.addresses import have_equal_offsets
from collhub_mscclpp.writing.landing import coarse_regions
from collhub_mscclpp.writing.rank_tables import MEMORY
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import BoolArray, Int64Array, expanded_ranges
from hub_core.model import StepKind
from hub_core.verification import Regions


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
    """Whether writers receive what is sent behind the step that reads, by its rank.

    The send stands in the block of the reader, or depends on a step that does.
    """
    steps, position = work.steps, work.position
    sent_by = np.full(len(steps) + 1, -1, np.int64)
    sent_by[work.messages.receive] = work.messages.send
    # Row -1, of what nobody writes, is the last place: nobody sends to it.
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
