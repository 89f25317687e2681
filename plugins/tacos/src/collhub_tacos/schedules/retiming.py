"""Orders of transfers in linear time: by groups, and who waits for whom within a chunk.

Import it late: numba takes a second.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_packing.compiling import kernel

from collhub_tacos.networks.link_network import LinkTimes
from collhub_tacos.networks.switches import PathNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule, released_at_once, windows_of_links
from collhub_tacos.schedules.timing import settled
from hub_core.columns import Int64Array, row_pointer, stable_order_by


@kernel
def grouped(order: Int64Array, group: Int64Array, num_groups: int) -> Int64Array:
    """`order`, int64 places in `group`, sorted by group; within one as it stands.

    Counting sort: O(places + groups).
    """
    begin = np.zeros(num_groups + 1, np.int64)
    for place in order:
        begin[group[place] + 1] += 1
    for number in range(num_groups):
        begin[number + 1] += begin[number]
    found = np.empty(len(order), np.int64)
    for place in order:
        number = group[place]
        found[begin[number]] = place
        begin[number] += 1
    return found


@kernel
def waits_within_chunks(
    by_start: Int64Array,
    chunk: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    start: Int64Array,
    finish: Int64Array,
    num_nodes: int,
) -> tuple[Int64Array, Int64Array]:
    """Pairs of transfers of one chunk: the first has ended where the second starts, and by then.

    `by_start`: transfers by chunk, within one by start. Those that wait for one transfer come by
    their starts. Cost: a list of ends per node and chunk, all of which every start looks at.

    Invariant: `last[node]` is -1 for every node when a chunk begins.
    """
    last = np.full(num_nodes, -1, np.int64)
    previous = np.full(len(by_start), -1, np.int64)
    number = 0
    # Pairs are counted first, so that the arrays are made once.
    before, after = np.empty(0, np.int64), np.empty(0, np.int64)
    for is_counting in (True, False):
        if not is_counting:
            before, after = np.empty(number, np.int64), np.empty(number, np.int64)
            number = 0
        begin = 0
        while begin < len(by_start):
            end = begin
            while end < len(by_start) and chunk[by_start[end]] == chunk[by_start[begin]]:
                transfer = by_start[end]
                previous[transfer] = last[destination[transfer]]
                last[destination[transfer]] = transfer
                end += 1
            for place in range(begin, end):
                transfer = by_start[place]
                ended = last[source[transfer]]
                while ended >= 0:
                    if finish[ended] <= start[transfer]:
                        if not is_counting:
                            before[number] = ended
                            after[number] = transfer
                        number += 1
                    ended = previous[ended]
            for place in range(begin, end):
                last[destination[by_start[place]]] = -1
            begin = end
    return before, after


def retimed(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """Same transfers in the same order on every link, as early as `times` allow.

    A transfer starts when its link is free, its source has all that arrived there of the chunk
    before it in the given schedule, and the message `compute_windows` turns before it has arrived.
    At switches messages wait in line. Cost: sorts, and a word per (chunk, node) that is touched.
    """
    network = schedule.network
    if isinstance(network, PathNetwork):
        return settled(schedule, times)
    turns = np.bincount(schedule.link, minlength=network.num_links)
    start = _earliest(
        stable_order_by(schedule.start, schedule.finish),
        schedule.link,
        *_cells(schedule),
        times.busy,
        times.arrival,
        windows_of_links(network, times),
        row_pointer(turns),
        released_at_once(network, times.rule),
    )
    return replace(schedule, start=start, finish=start + times.arrival[schedule.link])


def _cells(schedule: LinkSchedule) -> tuple[Int64Array, Int64Array, int]:
    """(chunk, node) at the start and at the end of every transfer, numbered, and their number."""
    num_chunks = int(schedule.chunk.max(initial=-1)) + 1
    before = schedule.source * num_chunks + schedule.chunk
    behind = schedule.destination * num_chunks + schedule.chunk
    cells, number = np.unique(np.concatenate([before, behind]), return_inverse=True)
    cell = number.ravel().astype(np.int64)
    return cell[: len(schedule)], cell[len(schedule) :], len(cells)


@kernel
def _earliest(
    order: Int64Array,
    link: Int64Array,
    at_source: Int64Array,
    at_destination: Int64Array,
    num_cells: int,
    busy: Int64Array,
    arrival: Int64Array,
    window: Int64Array,
    first_turn: Int64Array,
    at_once: int,
) -> Int64Array:
    """Starts by one pass over the transfers in `order`, in which causes stand before effects.

    Invariant: when a transfer is reached, `present`, `free` and `ended` hold for all before it.
    """
    turn = np.zeros(len(busy), np.int64)
    ended = np.zeros(len(order), np.int64)
    free = np.zeros(len(busy), np.int64)
    present = np.zeros(num_cells, np.int64)
    start = np.zeros(len(order), np.int64)
    for transfer in order:
        used = link[transfer]
        begin = max(free[used], present[at_source[transfer]])
        place = first_turn[used]
        number = turn[used]
        awaited = number - window[used]
        # The first message of a link waits for none.
        if at_once > 0 and number > 0:
            awaited = max(awaited, (number - 1) // at_once)
        if awaited >= 0:
            begin = max(begin, ended[place + awaited])
        ended[place + number] = begin + arrival[used]
        turn[used] = number + 1
        start[transfer] = begin
        free[used] = begin + busy[used]
        target = at_destination[transfer]
        # Sums get several parts: what goes on waits for the last of them.
        present[target] = max(present[target], begin + arrival[used])
    return start
