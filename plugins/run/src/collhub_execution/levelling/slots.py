"""Place values that live for a while in as little scratch as a first fit finds."""

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
    """Offsets of slots of `count` blocks that live from level `first` to `last`, and all scratch.

    `occupied`: int64[num_ranks], blocks that are taken already; the second array, of the same
    shape, is the scratch of every rank with its slots. Slots of one level lie side by side, at the
    same place in every level; those that outlive their level are placed behind, each at the first
    gap. Cost: a sort, and for the latter, which only staged messages need, their number times the
    number that live at one time.
    """
    offsets = np.zeros(len(rank), np.int64)
    sizes = occupied.copy()
    is_short = first == last
    short = np.flatnonzero(is_short)
    owner = rank[short].astype(np.int64)
    starts, ends = _side_by_side(owner, first[short], count[short])
    offsets[short] = occupied[owner] + starts
    np.maximum.at(sizes, owner, occupied[owner] + ends)
    long = np.flatnonzero(~is_short)
    by_start = long[np.argsort(first[long], kind="stable")]
    _place_living(by_start, rank, first, last, count, offsets, sizes)
    return offsets, sizes


def _place_living(
    rows: Int64Array,
    rank: IntArray,
    first: Int64Array,
    last: Int64Array,
    count: Int64Array,
    offsets: Int64Array,
    sizes: Int64Array,
) -> None:
    """Fill in the offsets of `rows`, which are sorted by their first level; `sizes` may grow.

    First fit in the order of arrival, as for dynamic storage (Knuth, TAOCP 1, section 2.5):
    optimal packing of intervals with sizes is NP-hard, and these slots are few.
    """
    base = sizes.tolist()
    living: dict[int, list[_LivingSlot]] = {}
    for row in rows.tolist():
        owner, start, length = int(rank[row]), int(first[row]), int(count[row])
        # Starts ascend, so that what has ended now stays out of the way.
        alive = [slot for slot in living.get(owner, ()) if slot[2] >= start]
        offset = _first_gap(alive, base[owner], length)
        end = offset + length
        living[owner] = sorted([*alive, (offset, end, int(last[row]))])
        offsets[row] = offset
        sizes[owner] = max(int(sizes[owner]), end)


def _side_by_side(
    rank: Int64Array, level: Int64Array, count: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(start, end) of every slot among those of its rank and level, in the given order."""
    # One running sum over all groups; each group then starts at its own zero.
    order = np.lexsort((level, rank))
    ends = np.cumsum(count[order])
    starts = ends - count[order]
    is_first = run_mask(rank[order], level[order])
    group = np.cumsum(is_first) - 1
    origin = starts[is_first][group]
    found = np.empty((2, len(order)), np.int64)
    found[0, order] = starts - origin
    found[1, order] = ends - origin
    return found[0], found[1]


def _first_gap(alive: list[_LivingSlot], base: int, length: int) -> int:
    """The smallest offset from `base` on with `length` free blocks; `alive` is sorted by offset."""
    offset = base
    for start, end, _ in alive:
        if start - offset >= length:
            break
        offset = max(offset, end)
    return offset
