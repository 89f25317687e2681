"""As early as possible: the times of a schedule when every link keeps its order.

Import it late: numba takes a second.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_packing.compiling import kernel

from collhub_tacos.networks.link_network import LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.timing import settled
from collhub_tacos.schedules.windows import released_at_once, windows_of_links
from hub_core.columns import Int64Array, row_pointer, stable_order_by


def retimed(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """Same transfers in the same order on every link, as early as `times` allow.

    A transfer starts when its link is free, its source has all that arrived there of the chunk
    before it in the given schedule, and the message `windows.windows` turns before it has arrived.
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
