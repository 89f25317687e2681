"""Compiled retiming: the earliest times of a schedule if every link keeps its order.

Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_packing.compiling import kernel

from collhub_tacos.link_network import LinkTimes, PathNetwork
from collhub_tacos.schedules.link_schedule import (
    LinkSchedule,
    compute_link_windows,
    max_released_at_once,
)
from collhub_tacos.schedules.timing import retime_by_events
from hub_core.columns import Int64Array, row_pointer, stable_order_by


@kernel
def sort_by_group(order: Int64Array, group: Int64Array, num_groups: int) -> Int64Array:
    """Return the entries of `order` sorted by group; entries of one group keep their order.

    `order`: int64, indices of `group`. `group`: numbers below `num_groups`. A counting sort, which
    takes O(indices + groups).
    """
    begin = np.zeros(num_groups + 1, np.int64)
    for index in order:
        begin[group[index] + 1] += 1
    for number in range(num_groups):
        begin[number + 1] += begin[number]
    sorted_places = np.empty(len(order), np.int64)
    for index in order:
        number = group[index]
        sorted_places[begin[number]] = index
        begin[number] += 1
    return sorted_places


@kernel
def find_waits_within_chunks(
    by_start: Int64Array,
    chunk: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    start: Int64Array,
    finish: Int64Array,
    num_nodes: int,
) -> tuple[Int64Array, Int64Array]:
    """Return the pairs (earlier, later) of transfers of one chunk in which the later one must wait.

    A pair exists if the earlier transfer ends at the node where the later one starts, and arrives
    at or before its start. Two int64 columns of transfer numbers, by the later one in the order of
    `by_start`. `by_start`: transfers sorted by chunk, then by start. All arrivals of the chunk at
    the node are examined for every start.
    """
    last = np.full(num_nodes, -1, np.int64)
    previous = np.full(len(by_start), -1, np.int64)
    number = 0
    # The first pass counts the pairs, so that the arrays are allocated once.
    source_cell, after = np.empty(0, np.int64), np.empty(0, np.int64)
    for is_counting in (True, False):
        if not is_counting:
            source_cell, after = np.empty(number, np.int64), np.empty(number, np.int64)
            number = 0
        begin = 0
        while begin < len(by_start):
            end = begin
            while end < len(by_start) and chunk[by_start[end]] == chunk[by_start[begin]]:
                transfer = by_start[end]
                previous[transfer] = last[destination[transfer]]
                last[destination[transfer]] = transfer
                end += 1
            for index in range(begin, end):
                transfer = by_start[index]
                arrived = last[source[transfer]]
                while arrived >= 0:
                    if finish[arrived] <= start[transfer]:
                        if not is_counting:
                            source_cell[number] = arrived
                            after[number] = transfer
                        number += 1
                    arrived = previous[arrived]
            for index in range(begin, end):
                last[destination[by_start[index]]] = -1
            begin = end
    return source_cell, after


def retime(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """Start the same transfers as early as `times` allow, in the same order on every link.

    A transfer starts at the latest of these times, at least 0:

    - its link is free, i.e. `busy` ps after the start of the previous transfer of the link
    - the arrival of every earlier transfer that brings its chunk to its source. Earlier means by
      start, then by finish, then by row in the given schedule
    - the arrival of the message that the window rule requires (limit of messages in flight on a
      link)

    It finishes `arrival` ps after its start. On networks with switches (`PathNetwork`) the times
    are those of an event simulation, in which messages also queue at switches. The result is a
    copy: rows keep their order, and only starts and finishes change.
    """
    network = schedule.network
    if isinstance(network, PathNetwork):
        return retime_by_events(schedule, times)
    turns = np.bincount(schedule.link, minlength=network.num_links)
    # Number the pairs (chunk, node) at both ends of every transfer.
    num_chunks = int(schedule.chunk.max(initial=-1)) + 1
    source_cell = schedule.source * num_chunks + schedule.chunk
    destination_cell = schedule.destination * num_chunks + schedule.chunk
    cells, number = np.unique(np.concatenate([source_cell, destination_cell]), return_inverse=True)
    cell = number.ravel().astype(np.int64)
    start = _compute_earliest_starts(
        stable_order_by(schedule.start, schedule.finish),
        schedule.link,
        cell[: len(schedule)],
        cell[len(schedule) :],
        len(cells),
        times.busy,
        times.arrival,
        compute_link_windows(network, times),
        row_pointer(turns),
        max_released_at_once(network, times.rule),
    )
    return replace(schedule, start=start, finish=start + times.arrival[schedule.link])


@kernel
def _compute_earliest_starts(
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
    """Compute the earliest start of every transfer in ps, in one pass in the order `order`.

    `order` must list causes before effects, and is kept on every link. A cell is a chunk at a node;
    `at_source`, `at_destination`: cells of each transfer. A transfer starts when its link is free
    and all earlier arrivals in its source cell are complete. Message n of a link also waits for the
    arrival of message n - `window` and, with `at_once` > 0, of message (n - 1) // at_once; the
    first message of a link does not wait. `first_turn`: number of messages of all earlier links.
    """
    turn = np.zeros(len(busy), np.int64)
    arrived = np.zeros(len(order), np.int64)
    free = np.zeros(len(busy), np.int64)
    present = np.zeros(num_cells, np.int64)
    start = np.zeros(len(order), np.int64)
    for transfer in order:
        used = link[transfer]
        begin = max(free[used], present[at_source[transfer]])
        index = first_turn[used]
        number = turn[used]
        awaited = number - window[used]
        # The first message of a link does not wait.
        if at_once > 0 and number > 0:
            awaited = max(awaited, (number - 1) // at_once)
        if awaited >= 0:
            begin = max(begin, arrived[index + awaited])
        arrived[index + number] = begin + arrival[used]
        turn[used] = number + 1
        start[transfer] = begin
        free[used] = begin + busy[used]
        target = at_destination[transfer]
        # A sum has several parts; the transfer that forwards it waits for the last of them.
        present[target] = max(present[target], begin + arrival[used])
    return start
