"""Choose the ranges that operations of switch channels read and write on all members."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from collhub_mscclpp.writing.landing import Landing, find_coarse_regions
from collhub_mscclpp.writing.segments import have_equal_offsets, memory_layouts
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import Int64Array, expanded_ranges
from hub_core.model import Buffer, MemoryLayout, StepKind
from hub_core.verification import Regions

_SCRATCH = int(Buffer.SCRATCH)


@dataclass(frozen=True, slots=True)
class SwitchStore:
    """A range that a switch channel writes: number of its group, buffer, and first chunk."""

    group: int
    buffer: int
    index: int


@dataclass(slots=True, eq=False)
class SwitchStores:
    """Groups of switch channels and the ranges that they access.

    `groups`: buffer and ranks (ascending), by number of the group. `multicasts`: range that is
    written, by number of the multicast. `sources`: group whose ranges are added, and `results`:
    range of the result, both by number of the sum.
    """

    groups: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    multicasts: dict[int, SwitchStore] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    results: dict[int, SwitchStore] = field(default_factory=dict)

    def group(self, buffer: int, ranks: list[int]) -> int:
        """Return the number of the group of a buffer and ranks; a missing group is added.

        The order of the ranks does not matter. Groups are numbered from 0 as they are added.
        """
        key = buffer, tuple(sorted(ranks))
        if key not in self.groups:
            self.groups.append(key)
        return self.groups.index(key)


def place_switch_stores(
    work: PlanWork, landing: Landing, *, is_packets: bool
) -> tuple[Landing, SwitchStores]:
    """Choose the range that each multicast and each sum of a switch writes on all its members.

    First, a sum is removed from `work.switches` if any of its messages is not pulled, i.e. not read
    from the sender's memory. If no multicast or sum remains, returns `landing` itself and an empty
    `SwitchStores`. Otherwise returns a copy of `landing`, in which the messages of multicasts have
    the new ranges, and all ranges. Multicasts are first; both kinds are in the order of numbers.

    - A multicast writes at the destination of its receives if there are no packets, all receives
      are of the kind RECV, and two facts hold in every mode (in place, out of place): the buffer
      has one offset in the memory of sender and receivers, and the range is free (`_Mode.is_free`).
    - A sum whose result is sent by a multicast writes the range of this multicast.
    - All others write new scratch, which begins at one chunk, after the scratch of all members.

    If then any range that is read or written is in scratch, all ranks get the largest scratch size.
    """
    stores = SwitchStores()
    switches, steps = work.switches, work.steps
    for rows in list(switches.totals.values()):
        if not landing.is_pulled[rows].all():
            switches.remove(rows)
    if switches.is_empty:
        return landing, stores
    scratch = landing.scratch.copy()
    landing = replace(
        landing,
        buffer=landing.buffer.copy(),
        index=landing.index.copy(),
        is_direct=landing.is_direct.copy(),
        scratch=scratch,
    )
    receive_of = dict(zip(work.messages.send.tolist(), work.messages.receive.tolist(), strict=True))
    modes: list[_Mode] = []
    if not is_packets:
        layouts = zip(memory_layouts(work), find_coarse_regions(work), strict=True)
        modes = [_Mode(work, layout, regions) for layout, regions in layouts]
    for number, rows in switches.multicasts.items():
        receives = [receive_of[row] for row in rows]
        members = [int(steps.rank[rows[0]]), *steps.rank[receives].tolist()]
        target = steps.dst_buffer[receives].astype(np.int64)
        is_direct = (
            not is_packets
            and bool(steps.is_kind(StepKind.RECV)[receives].all())
            # The sender adds the offset of its own buffer to the address, in every mode.
            and bool(have_equal_offsets(work, np.asarray(rows), np.asarray(receives), target).all())
            and all(mode.is_free(number, rows, receives) for mode in modes)
        )
        if is_direct:
            buffer, index = int(steps.dst_buffer[receives[0]]), _find_first_chunk(work, receives[0])
        else:
            buffer, index = _SCRATCH, _reserve_scratch(work, scratch, members, rows[0])
        stores.multicasts[number] = SwitchStore(stores.group(buffer, members), buffer, index)
        landing.buffer[[*rows, *receives]] = buffer
        landing.index[[*rows, *receives]] = index
        landing.is_direct[receives] = is_direct
    for number, rows in switches.totals.items():
        members = [int(steps.rank[rows[0]]), *steps.peer[rows].tolist()]
        stores.sources[number] = stores.group(int(steps.src_buffer[rows[0]]), members)
        if number in switches.joined:
            stores.results[number] = stores.multicasts[switches.joined[number]]
        else:
            index = _reserve_scratch(work, scratch, members, rows[0])
            stores.results[number] = SwitchStore(stores.group(_SCRATCH, members), _SCRATCH, index)
    if any(buffer == _SCRATCH for buffer, _ in stores.groups):
        # A switch channel spans equally large scratch on all members.
        scratch[:] = scratch.max()
    return landing, stores


def _find_first_chunk(work: PlanWork, row: int) -> int:
    """First chunk that a step writes."""
    return int(work.steps.dst_offset[row]) // work.unit


def _reserve_scratch(work: PlanWork, scratch: Int64Array, members: list[int], row: int) -> int:
    """Reserve scratch for a step at the same offset on all members; return its first chunk.

    The range begins at the largest number of scratch chunks of any member. `scratch`:
    chunks of scratch of every rank; those of the members become the end of the range.
    `row`: the step, whose count gives the size.
    """
    index = int(scratch[members].max())
    scratch[members] = index + int(work.steps.count[row]) // work.unit
    return index


class _Mode:
    """The steps that read and write each chunk in one mode (in place or out of place)."""

    def __init__(self, work: PlanWork, layout: MemoryLayout, regions: Regions) -> None:
        self._work = work
        self._layout = layout
        self._regions = regions
        self._readers = _AccessIndex(regions.source, regions.count)
        self._writers = _AccessIndex(regions.destination, regions.count)
        messages = work.messages
        self._send_of = dict(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
        # The sum whose result is multicast, by number of the multicast.
        self._total_of = {multicast: total for total, multicast in work.switches.joined.items()}
        self._has_data = np.zeros(layout.total + 1, np.bool_)
        ranks = np.flatnonzero(work.algorithm.collective.defined_inputs())
        starts, sizes = layout.base[ranks, Buffer.INPUT], layout.size[ranks, Buffer.INPUT]
        self._has_data[expanded_ranges(starts, sizes)] = True

    def is_free(self, number: int, rows: list[int], receives: list[int]) -> bool:
        """Return whether a multicast may be stored at the destination of its messages.

        A multicast stores at one buffer and offset on all receivers and on its sender. `number`:
        number of the multicast. `rows`, `receives`: its sends and their receives. All must be true:

        - All receives have the same buffer and offset.
        - On the sender the range ends within the buffer. It begins at the source of the multicast,
          or no step reads it and its content is not needed (`_is_free_at_sender`).
        - On each receiver only the receive writes the range, at any time. No step reads it before,
          except sends of terms of the sum that is multicast.
        """
        steps = self._work.steps
        destinations = {
            (int(steps.dst_buffer[row]), int(steps.dst_offset[row])) for row in receives
        }
        if len(destinations) > 1:
            return False
        return self._is_free_at_sender(number, rows, receives[0]) and all(
            self._is_free_at_receiver(number, row) for row in receives
        )

    def _is_free_at_receiver(self, number: int, receive: int) -> bool:
        """Return whether a multicast may be stored at the destination of one of its receives.

        `number`: number of the multicast. `receive`: the step that receives it. Both must be
        true:

        - No other step writes a part of the destination range, at any time.
        - No step reads a part of the range before `receive`.

        One exception to the second rule: if the multicast sends a sum, then the rank of `receive`
        may read the range before, by its own sends of terms of that sum.
        """
        work, regions = self._work, self._regions
        start, count = int(regions.destination[receive]), int(regions.count[receive])
        if self._writers.rows(start, count) != {receive}:
            return False
        rank = int(work.steps.rank[receive])
        # The terms of the sum are read before its result is multicast.
        terms = work.switches.totals.get(self._total_of.get(number, -1), [])
        sent = {self._send_of[term] for term in terms if int(work.steps.peer[term]) == rank}
        readers = self._readers.rows(start, count) - sent
        return all(work.position[row] > work.position[receive] for row in readers)

    def _is_free_at_sender(self, number: int, rows: list[int], receive: int) -> bool:
        """Return whether a multicast may also store at its destination on the sender.

        `number`: of the multicast; `rows`: its sends, of which the first gives sender and source;
        `receive`: one of its receives, which gives buffer, offset and size of the destination. The
        first rule that applies to this range on the sender:

        1. It does not end within the buffer of the sender: False.
        2. It begins at the source of the multicast: True.
        3. Any step reads a part of it: False.
        4. No step writes it and it contains no INPUT data: True.
        5. Its only writer is the local copy of the multicast's data (`switches.copies`): True.
        6. Otherwise False.
        """
        work, layout, regions = self._work, self._layout, self._regions
        rank, buffer = int(work.steps.rank[rows[0]]), int(work.steps.dst_buffer[receive])
        index, count = _find_first_chunk(work, receive), int(regions.count[receive])
        if index + count > layout.size[rank, buffer]:
            return False
        start = int(layout.base[rank, buffer]) + index
        if start == int(regions.source[rows[0]]):
            return True
        writers, readers = self._writers.rows(start, count), self._readers.rows(start, count)
        copy = work.switches.copies.get(number)
        is_unused = not writers and not self._has_data[start : start + count].any()
        # The copy writes the same data, before or after the multicast.
        is_copied = copy is not None and writers == {copy}
        return not readers and (is_unused or is_copied)


class _AccessIndex:
    """Rows of the steps that access each chunk."""

    def __init__(self, start: Int64Array, count: Int64Array) -> None:
        rows = np.flatnonzero(start >= 0)
        chunk = expanded_ranges(start[rows], count[rows])
        owner = np.repeat(rows, count[rows])
        order = np.argsort(chunk, kind="stable")
        self._chunk, self._row = chunk[order], owner[order]

    def rows(self, start: int, count: int) -> set[int]:
        """Return the rows of the indexed steps that access any of `count` chunks from `start` on.

        The index has either the reads or the writes of one mode. Chunks are numbered over the
        memory of all ranks. The set is empty for 0 chunks.
        """
        first, last = np.searchsorted(self._chunk, [start, start + count])
        return set(self._row[first:last].tolist())
