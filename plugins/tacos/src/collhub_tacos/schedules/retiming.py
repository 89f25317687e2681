"""As early as possible: the times of a schedule when every link keeps its order and starts as soon as it can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel
from collhub_tacos.networks.link_network import LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.routing.plan import settled
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.windows import released_at_once, windows_of_links

Int64Array = npt.NDArray[np.int64]


def retimed(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """The same transfers in the same order on every link, as early as can be, with the link times of `times`.

    A transfer starts when its link is free, its source has all that arrived there of the chunk before it in the given
    schedule, and the message that is `routing_windows.windows` turns before it has arrived. Where messages pass switches,
    they wait there in line. Cost: some sorts, and one word per (chunk, node) that is touched.
    """
    network = schedule.network
    if isinstance(network, PathNetwork):
        return settled(schedule, times)
    source, destination = network.source[schedule.link], network.destination[schedule.link]
    order = np.lexsort((schedule.finish, schedule.start)).astype(np.int64)
    num_chunks = int(schedule.chunk.max(initial=-1)) + 1
    keys = np.concatenate(
        [source * num_chunks + schedule.chunk, destination * num_chunks + schedule.chunk]
    )
    cells, cell = np.unique(keys, return_inverse=True)
    cell = cell.ravel().astype(np.int64)
    at_source, at_destination = cell[: len(schedule)], cell[len(schedule) :]
    window = windows_of_links(network, times)
    first_turn = np.concatenate(
        [[0], np.cumsum(np.bincount(schedule.link, minlength=network.num_links))]
    ).astype(np.int64)
    rules = (times.busy, times.arrival, window, first_turn, released_at_once(network))
    start = _earliest(order, schedule.link, at_source, at_destination, len(cells), *rules)
    return replace(schedule, start=start, finish=start + times.arrival[schedule.link])


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
    turn = np.zeros(len(busy), np.int64)
    ended = np.zeros(len(order), np.int64)
    free = np.zeros(len(busy), np.int64)
    present = np.zeros(num_cells, np.int64)
    start = np.zeros(len(order), np.int64)
    for transfer in order:
        used = link[transfer]
        begin = max(free[used], present[at_source[transfer]])
        place, number = first_turn[used], turn[used]
        if number > 0:
            begin = max(begin, ended[place + max(number - window[used], (number - 1) // at_once)])
        ended[place + number] = begin + arrival[used]
        turn[used] = number + 1
        start[transfer] = begin
        free[used] = begin + busy[used]
        target = at_destination[transfer]
        present[target] = max(present[target], begin + arrival[used])
    return start
