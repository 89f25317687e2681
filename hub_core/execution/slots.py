"""Place values that live for a while in as little scratch as a first fit finds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def place_slots(
    rank: npt.NDArray[np.integer],
    first: Int64Array,
    last: Int64Array,
    count: Int64Array,
    occupied: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Offsets of slots of `count` blocks that live from level `first` to level `last`, and the scratch of every rank.

    `occupied`: int64[num_ranks], blocks that are taken already. Slots of one level lie side by side, at the same place in
    every level; those that outlive their level are placed behind, each at the first gap. Cost: a sort, and for the latter,
    which only staged messages need, their number times the number that live at one time.
    """
    offsets = np.zeros(len(rank), np.int64)
    sizes = occupied.copy()
    is_short = first == last
    short = np.flatnonzero(is_short)
    offsets[short], ends = _side_by_side(rank[short].astype(np.int64), first[short], count[short])
    np.maximum.at(sizes, rank[short], occupied[rank[short]] + ends)
    offsets[short] += occupied[rank[short]]
    long = np.flatnonzero(~is_short)
    base = sizes.tolist()
    living: dict[int, list[tuple[int, int, int]]] = {}
    for index in long[np.argsort(first[long], kind="stable")].tolist():
        owner, start, length = int(rank[index]), int(first[index]), int(count[index])
        alive = [slot for slot in living.get(owner, ()) if slot[2] >= start]
        offset = _first_gap(alive, base[owner], length)
        living[owner] = sorted([*alive, (offset, offset + length, int(last[index]))])
        offsets[index] = offset
        sizes[owner] = max(int(sizes[owner]), offset + length)
    return offsets, sizes


def _side_by_side(
    rank: Int64Array, level: Int64Array, count: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(start, end) of every slot among those of its rank and level, in the given order."""
    order = np.lexsort((level, rank))
    ends = np.cumsum(count[order])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(rank[order]) != 0) | (np.diff(level[order]) != 0)
    starts = ends - count[order]
    group = starts[is_first][np.cumsum(is_first) - 1]
    found = np.empty((2, len(order)), np.int64)
    found[:, order] = starts - group, ends - group
    return found[0], found[1]


def _first_gap(alive: list[tuple[int, int, int]], base: int, length: int) -> int:
    """The smallest offset from `base` on with `length` free blocks; `alive` is sorted by offset."""
    offset = base
    for start, end, _ in alive:
        if start - offset >= length:
            break
        offset = max(offset, end)
    return offset
