"""List the conflicting accesses to memory whose order decides whether there is any race."""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray, Int64Array, distinct, expanded_ranges, run_mask, suffix_least

from hub_core.model.diagnostics import InputError
from hub_core.verification.regions import Regions

# Some gigabytes of keys; beyond, the refusal is a finding.
MAX_ACCESSES = 1 << 28


def adjacent_conflicts(regions: Regions, position: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Pairs of rows (earlier, later) that access one block, one of them writing; each pair once.

    `position`: the place of every row in a linear extension of happens-before, -1 for rows that
    never run. Only neighbours are listed: per block, in that extension, each access with the last
    write before it, and each read with the next write. That is enough for an exact verdict:
    conflicting accesses x before y are joined by a chain of such neighbours (x, the writes between,
    y); if every neighbouring pair is ordered by happens-before, so is x, y by transitivity; and a
    neighbouring pair that is not ordered is a race itself. A step that reads and writes one block
    counts as a writer of it, and never conflicts with itself. Cost: one sort of the accesses.
    """
    row, start, is_write = _accesses(regions, position)
    atoms, owner = _atoms(start, regions.count[row])
    runs = np.flatnonzero(position >= 0)
    nodes = len(runs)
    # Keys hold places instead of rows, so that sorting them sorts by time.
    row_at = np.empty(nodes, np.int64)
    row_at[position[runs]] = runs
    keys = _sorted_keys(atoms, position[row[owner]], is_write[owner], nodes)
    block, place = np.divmod(keys >> 1, max(nodes, 1))
    earlier, later = _neighbours(block, (keys & 1).astype(np.bool_))
    earlier, later = place[earlier], place[later]
    # Where accesses were split, two steps can meet in several atoms.
    if len(atoms) > len(start):
        earlier, later = np.divmod(distinct(earlier * nodes + later), nodes)
    return row_at[earlier], row_at[later]


def _accesses(regions: Regions, position: Int64Array) -> tuple[Int64Array, Int64Array, BoolArray]:
    """(row, first block, whether it writes) of all accesses of steps that run, reads first."""
    runs = position >= 0
    # A read of exactly what the same step writes adds nothing.
    is_other = regions.source != regions.destination
    reads = np.flatnonzero(runs & (regions.source >= 0) & is_other)
    writes = np.flatnonzero(runs & (regions.destination >= 0))
    rows = np.concatenate([reads, writes])
    starts = np.concatenate([regions.source[reads], regions.destination[writes]])
    return rows, starts, np.arange(len(rows)) >= len(reads)


def _atoms(starts: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Split accesses at all borders of accesses.

    (atom, index of the access) per piece. Atoms between two neighbouring borders are never told
    apart by any access, so that regions of any size cost no more than their number of overlaps.
    Raises `InputError` for more than `MAX_ACCESSES` pieces.
    """
    owner = np.arange(len(starts))
    # Accesses to one block each are atoms as they are.
    if not len(starts) or int(counts.max()) == 1:
        return starts, owner
    # Where any access begins or ends; between two borders all units have the same accesses.
    borders = distinct(np.concatenate([starts, starts + counts]))
    first = np.searchsorted(borders, starts)
    length = np.searchsorted(borders, starts + counts) - first
    total = int(length.sum())
    if total > MAX_ACCESSES:
        counted = f"{total} overlapping accesses are too many to check for races"
        raise InputError(f"{counted} (limit {MAX_ACCESSES})", code="too-large")
    return expanded_ranges(first, length), np.repeat(owner, length)


def _sorted_keys(
    atoms: Int64Array, places: Int64Array, is_write: BoolArray, nodes: int
) -> Int64Array:
    """(atom, place, write flag) in one integer each, sorted.

    The flag is the lowest bit, so that of the two accesses of one step to one atom the write comes
    last; the read beside it is dropped.
    """
    largest = int(atoms.max(initial=0))
    if largest * max(nodes, 1) >= 1 << 61:
        # Dense numbers make room for the place and the flag in 64 bits.
        _, atoms = np.unique(atoms, return_inverse=True)
    keys = np.sort((atoms * nodes + places) * 2 + is_write)
    # Without the flag, the keys of the two accesses are the same.
    is_last_of_step = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:] >> 1, keys[:-1] >> 1, out=is_last_of_step[:-1])
    return keys[is_last_of_step]


def _neighbours(block: Int64Array, is_write: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Index pairs: (last write, access) where no write lies between, and (read, next write).

    Accesses are sorted by block and place. Running maxima of indices give the last write before an
    access, running minima from the end the next write after it; both count only within the block.
    """
    here = np.arange(len(block))
    if not len(here):
        return here, here
    none = len(here)
    is_first = run_mask(block)
    first = np.maximum.accumulate(np.where(is_first, here, 0))
    write_so_far = np.maximum.accumulate(np.where(is_write, here, -1))
    last_write = np.concatenate([[-1], write_so_far[:-1]])
    # Write after write with reads between follows from the pairs with these reads.
    is_direct = ~is_write | (last_write == here - 1)
    after_write = (last_write >= first) & is_direct
    is_end = np.roll(is_first, -1)
    end = suffix_least(np.where(is_end, here, none))
    next_write = suffix_least(np.where(is_write, here, none))
    # A read conflicts with the write that ends its value, if there is one in the block.
    before_write = ~is_write & (next_write <= end)
    earlier = np.concatenate([last_write[after_write], here[before_write]])
    return earlier, np.concatenate([here[after_write], next_write[before_write]])
