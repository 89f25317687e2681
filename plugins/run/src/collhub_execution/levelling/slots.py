"""Allocate slots in scratch for values with limited lifetimes, by first fit."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array, IntArray, run_mask

# (offset, end, last level) of a slot that is in use.
_LivingSlot = tuple[int, int, int]


def place_slots(
    rank: IntArray,
    first: Int64Array,
    last: Int64Array,
    count: Int64Array,
    occupied: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Allocate slots of `count` blocks that are live from level `first` to `last`.

    Return their offsets, and the scratch of every rank including slots, int64[num_ranks].
    `occupied`: blocks in use already, int64[num_ranks]. Slots of one level are adjacent, at the
    same position in every level; those that outlive their level follow, each in the first gap.
    Cost: a sort, and for the latter, which only staged messages need, their number times the number
    of live slots.
    """
    offsets = np.zeros(len(rank), np.int64)
    sizes = occupied.copy()
    is_short = first == last
    short = np.flatnonzero(is_short)
    owner = rank[short].astype(np.int64)
    starts, ends = _assign_adjacent(owner, first[short], count[short])
    offsets[short] = occupied[owner] + starts
    np.maximum.at(sizes, owner, occupied[owner] + ends)
    long = np.flatnonzero(~is_short)
    by_start = long[np.argsort(first[long], kind="stable")]
    _assign_long_slots(by_start, rank, first, last, count, offsets, sizes)
    return offsets, sizes


def _assign_long_slots(
    rows: Int64Array,
    rank: IntArray,
    first: Int64Array,
    last: Int64Array,
    count: Int64Array,
    offsets: Int64Array,
    sizes: Int64Array,
) -> None:
    """Set the offsets of `rows`, which are sorted by their first level; `sizes` may grow.

    First fit in the order of arrival, as for dynamic storage (Knuth, TAOCP 1, section 2.5): optimal
    packing of intervals with sizes is NP-hard, and these slots are few.
    """
    base = sizes.tolist()
    living: dict[int, list[_LivingSlot]] = {}
    for row in rows.tolist():
        owner, start, length = int(rank[row]), int(first[row]), int(count[row])
        # Starts ascend, so expired slots are never needed again.
        alive = [slot for slot in living.get(owner, ()) if slot[2] >= start]
        offset = _find_first_gap(alive, base[owner], length)
        end = offset + length
        living[owner] = sorted([*alive, (offset, end, int(last[row]))])
        offsets[row] = offset
        sizes[owner] = max(int(sizes[owner]), end)


def _assign_adjacent(
    rank: Int64Array, level: Int64Array, count: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return (start, end) of every slot among those of its rank and level, in the given order."""
    # One running sum over all groups, from which each group's origin is subtracted.
    order = np.lexsort((level, rank))
    ends = np.cumsum(count[order])
    starts = ends - count[order]
    is_first = run_mask(rank[order], level[order])
    group = np.cumsum(is_first) - 1
    origin = starts[is_first][group]
    bounds = np.empty((2, len(order)), np.int64)
    bounds[0, order] = starts - origin
    bounds[1, order] = ends - origin
    return bounds[0], bounds[1]


def _find_first_gap(alive: list[_LivingSlot], base: int, length: int) -> int:
    """Return the smallest offset from `base` on with `length` free blocks;

    `alive` is sorted by offset.
    """
    offset = base
    for start, end, _ in alive:
        if start - offset >= length:
            break
        offset = max(offset, end)
    return offset
