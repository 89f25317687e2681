"""Orders of transfers in linear time: by groups, and who waits for whom within a chunk.

Import it late: numba takes a second.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel

from hub_core.columns import Int64Array


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
