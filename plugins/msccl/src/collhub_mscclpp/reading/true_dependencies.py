"""Dependencies among steps by the memory that they touch, compiled.

The algorithm keeps the last writer of every cell and the readers since then, in a list. A step
waits for the writer of what it reads, and for the writer and the readers of what it writes. Cost:
O(cells touched * readers of a cell).
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel

from hub_core.columns import Int64Array, UInt8Array


@kernel
def dependencies(
    read_base: Int64Array,
    write_base: Int64Array,
    reads_target: UInt8Array,
    cells: Int64Array,
    total: int,
    parents: Int64Array,
    children: Int64Array,
) -> int:
    """Find pairs (parent, child) of steps, and return how many there are.

    `read_base`, `write_base`: first cells, -1 for none; `reads_target`: whether what is written is
    read too; `cells` of each; `total` of the memory. Pairs beyond the room of `parents` and
    `children` are counted only; pairs may come more than once.
    """
    writer = np.full(total, -1, np.int64)
    reader = np.full(total, -1, np.int64)
    # A step reads a cell at most twice: every read has a place in the list.
    next_reader = np.empty(2 * cells.sum() + 1, np.int64)
    who = np.empty(2 * cells.sum() + 1, np.int64)
    used = 0
    found = 0
    for step in range(len(cells)):
        last = np.int64(-1)
        for side in range(2):
            base = read_base[step] if side == 0 else write_base[step]
            if base < 0 or (side == 1 and not reads_target[step]):
                continue
            for cell in range(base, base + cells[step]):
                parent = writer[cell]
                if parent >= 0 and parent not in (last, step):
                    if found < len(parents):
                        parents[found], children[found] = parent, step
                    found += 1
                    last = parent
                who[used], next_reader[used] = step, reader[cell]
                reader[cell] = used
                used += 1
        if write_base[step] < 0:
            continue
        for cell in range(write_base[step], write_base[step] + cells[step]):
            parent = writer[cell]
            if parent >= 0 and parent not in (last, step):
                if found < len(parents):
                    parents[found], children[found] = parent, step
                found += 1
                last = parent
            node = reader[cell]
            while node >= 0:
                parent = who[node]
                if parent not in (last, step):
                    if found < len(parents):
                        parents[found], children[found] = parent, step
                    found += 1
                    last = parent
                node = next_reader[node]
            reader[cell] = -1
            writer[cell] = step
    return found
