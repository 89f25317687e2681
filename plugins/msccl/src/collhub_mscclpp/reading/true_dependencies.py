"""Find dependencies between steps that access the same memory (compiled).

The algorithm stores the last writer of every cell and a list of the readers since that write. A
step waits for the writers of the cells it reads, and for the writers and readers of the cells it
writes. A reduction needs no entry as a reader of its target, because it is the next writer of these
cells. Cost: O(accessed cells * readers of a cell).
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel

from hub_core.columns import Int64Array


@kernel
def dependencies(
    read_base: Int64Array,
    write_base: Int64Array,
    cells: Int64Array,
    total: int,
    parents: Int64Array,
    children: Int64Array,
) -> int:
    """Store the pairs (parent, child) of steps that access the same memory; return their number.

    For each cell, a step that reads or writes it depends on the last write, and a step that writes
    it also on all reads since then. `read_base`, `write_base`: int64[steps], first cell that a step
    reads or writes, -1 for none. `cells`: number of cells of each step. `total`: cells of the
    memory. Pairs for which the arrays `parents` and `children` have no room are only counted. A
    pair may occur repeatedly.
    """
    writer = np.full(total, -1, np.int64)
    # Newest reader of each cell since the last write, and the reader before each of them.
    reader = np.full(total, -1, np.int64)
    next_reader = np.empty(cells.sum(), np.int64)
    reading_step = np.empty(cells.sum(), np.int64)
    used = 0
    count = 0
    for step in range(len(cells)):
        last = np.int64(-1)
        if read_base[step] >= 0:
            for cell in range(read_base[step], read_base[step] + cells[step]):
                parent = writer[cell]
                if parent >= 0 and parent != last:
                    if count < len(parents):
                        parents[count], children[count] = parent, step
                    count += 1
                    last = parent
                reading_step[used], next_reader[used] = step, reader[cell]
                reader[cell] = used
                used += 1
        if write_base[step] < 0:
            continue
        for cell in range(write_base[step], write_base[step] + cells[step]):
            parent = writer[cell]
            if parent >= 0 and parent not in (last, step):
                if count < len(parents):
                    parents[count], children[count] = parent, step
                count += 1
                last = parent
            node = reader[cell]
            while node >= 0:
                parent = reading_step[node]
                if parent not in (last, step):
                    if count < len(parents):
                        parents[count], children[count] = parent, step
                    count += 1
                    last = parent
                node = next_reader[node]
            reader[cell] = -1
            writer[cell] = step
    return count
