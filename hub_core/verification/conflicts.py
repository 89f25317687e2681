"""List the conflicting accesses to memory whose order decides whether there is any race."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.model.diagnostics import InputError
from hub_core.verification.regions import Regions

Int64Array = npt.NDArray[np.int64]

MAX_ACCESSES = 1 << 28


def adjacent_conflicts(regions: Regions, position: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Pairs of rows (earlier, later), without repetition, that access one block, one of them writing.

    `position`: the place of every row in a linear extension of happens-before, -1 for rows that never run. Only
    neighbours are listed: per block, in that extension, each access with the last write before it, and each read
    with the next write. That is enough for an exact verdict: conflicting accesses x before y are joined by a chain
    of such neighbours (x, the writes between, y); if every neighbouring pair is ordered by happens-before, so is
    x, y by transitivity; and a neighbouring pair that is not ordered is a race itself. A step that reads and
    writes one block counts as a writer of it, and never conflicts with itself.
    """
    rows, starts, counts, is_write = _accesses(regions, position)
    atoms, owner = _atoms(starts, counts)
    runs = np.flatnonzero(position >= 0)
    row_at = np.empty(len(runs), np.int64)
    row_at[position[runs]] = runs
    keys = _sorted_keys(atoms, position[rows[owner]], is_write[owner], len(runs))
    block, place = np.divmod(keys >> 1, max(len(runs), 1))
    earlier, later = _neighbours(block, (keys & 1).astype(np.bool_))
    earlier, later = place[earlier], place[later]
    if len(atoms) > len(starts):
        earlier, later = np.divmod(np.unique(earlier * len(runs) + later), len(runs))
    return row_at[earlier], row_at[later]


def _accesses(
    regions: Regions, position: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, npt.NDArray[np.bool_]]:
    """(row, start, count, is_write) of every access of a step that runs."""
    runs = position >= 0
    # A read of exactly what the same step writes adds nothing.
    reads = np.flatnonzero(runs & (regions.source >= 0) & (regions.source != regions.destination))
    writes = np.flatnonzero(runs & (regions.destination >= 0))
    rows = np.concatenate([reads, writes])
    starts = np.concatenate([regions.source[reads], regions.destination[writes]])
    return rows, starts, regions.count[rows], np.arange(len(rows)) >= len(reads)


def _atoms(starts: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Split accesses at all borders of accesses: (atom, index of the access) per piece.

    Atoms between two neighbouring borders are never told apart by any access, so that regions of any size cost
    no more than their number of overlaps.
    """
    owner = np.arange(len(starts))
    if not len(starts) or int(counts.max()) == 1:
        return starts, owner
    borders = np.unique(np.concatenate([starts, starts + counts]))
    first = np.searchsorted(borders, starts)
    length = np.searchsorted(borders, starts + counts) - first
    total = int(length.sum())
    if total > MAX_ACCESSES:
        raise InputError(
            f"{total} overlapping accesses are too many to check for races (limit {MAX_ACCESSES})",
            code="too-large",
        )
    ends = np.cumsum(length)
    return np.repeat(first - (ends - length), length) + np.arange(total), np.repeat(owner, length)


def _sorted_keys(
    atoms: Int64Array, positions: Int64Array, writes: npt.NDArray[np.bool_], nodes: int
) -> Int64Array:
    """Sort by (atom, position), the write flag in the lowest bit; a read beside a write of one step is dropped."""
    if len(atoms) and int(atoms.max()) * max(nodes, 1) >= 1 << 61:
        _, atoms = np.unique(atoms, return_inverse=True)
    keys = np.sort((atoms * nodes + positions) * 2 + writes)
    last_of_step = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:] >> 1, keys[:-1] >> 1, out=last_of_step[:-1])
    return keys[last_of_step]


def _neighbours(
    block: Int64Array, is_write: npt.NDArray[np.bool_]
) -> tuple[Int64Array, Int64Array]:
    """Index pairs: (last write, access) where no write lies between, and (read, next write)."""
    here = np.arange(len(block))
    if not len(here):
        return here, here
    is_first = np.concatenate([[True], block[1:] != block[:-1]])
    first = np.maximum.accumulate(np.where(is_first, here, 0))
    last_write = np.concatenate([[-1], np.maximum.accumulate(np.where(is_write, here, -1))[:-1]])
    # Write after write with reads between follows from the pairs with these reads.
    after_write = (last_write >= first) & (~is_write | (last_write == here - 1))
    end = np.minimum.accumulate(np.where(np.roll(is_first, -1), here, len(here))[::-1])[::-1]
    next_write = np.minimum.accumulate(np.where(is_write, here, len(here))[::-1])[::-1]
    before_write = ~is_write & (next_write <= end)
    earlier = np.concatenate([last_write[after_write], here[before_write]])
    return earlier, np.concatenate([here[after_write], next_write[before_write]])
