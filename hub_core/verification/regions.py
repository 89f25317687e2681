"""Memory regions that steps access, checked against the buffer sizes, and conflicting accesses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    distinct,
    expanded_ranges,
    run_mask,
    suffix_least,
)
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import MemoryLayout
from hub_core.model.diagnostics import Findings, InputError
from hub_core.model.kinds import READING, WRITING, Buffer, StepKind
from hub_core.model.messages import action, region
from hub_core.model.steps import StepTable
from hub_core.verification.unit_blocks import UnitBlock

# By operand of a step: the kinds of steps that have it, and the verb for messages.
_SIDES = {"src": (READING, "reads"), "dst": (WRITING, "writes")}

# Some gigabytes of keys; beyond, the refusal is a finding.
MAX_ACCESSES = 1 << 28


@dataclass(frozen=True, slots=True)
class Regions:
    """Addresses of the operands of all steps in one memory layout, in blocks of equal size.

    Columns with one entry per row of the step table: `source`, `destination`: address of the first
    block read and written, -1 if the step has no such operand or the region is invalid; `count`:
    number of blocks, 0 if invalid; `is_valid`: both regions are within their buffers. `total`:
    number of blocks in the memories of all ranks.
    """

    source: Int64Array
    destination: Int64Array
    count: Int64Array
    is_valid: BoolArray
    total: int


def check_regions(algorithm: Algorithm, findings: Findings) -> BoolArray:
    """Return which steps have a valid count and regions within their buffers: bool[rows].

    Violations are added to `findings` in this order; the first `CAP` (8) of each are listed, and
    the others counted:

    1. `empty-step`: a count below 1. COMPUTE steps are not checked.
    2. `out-of-bounds` of the source, then of the destination: a negative offset, or offset + count
       above the size of the buffer. Steps with rule 1, sides that the kind of step does not use,
       and UNKNOWN buffers are not checked.

    False for a step with any violation, also if it is only counted. Without steps the result is
    empty.
    """
    steps = algorithm.steps
    is_empty = ~steps.is_kind(StepKind.COMPUTE) & (steps.count < 1)

    def say(row: int) -> str:
        count = int(steps.count[row])
        return f"a count of {count} units, expected 1 or more: {action(steps, row)}"

    findings.add_rows("empty-step", steps, np.flatnonzero(is_empty), say)
    is_within = ~is_empty
    sizes = _buffer_sizes(algorithm)
    is_within &= ~_find_outside(steps, "src", sizes, is_empty, findings)
    is_within &= ~_find_outside(steps, "dst", sizes, is_empty, findings)
    return is_within


def find_regions(
    algorithm: Algorithm,
    layout: MemoryLayout,
    is_valid: BoolArray,
    unit: int,
    block: UnitBlock | None = None,
) -> Regions:
    """Compute the addresses of the regions of all steps, in blocks of `unit` units.

    Offsets and counts are divided by `unit`, rounded down. A step has these addresses and
    count:

    - A step that is not in `is_valid` (bool[rows]): -1 on both sides and count 0.
    - Any other step: -1 on a side that its kind does not use, otherwise the address of the
      first block.

    With `block`, each region is first cut to the units of the block. `layout` must then be
    that of its collective. A step without units in the block counts as not in `is_valid`; one
    with fewer than `unit` of them has count 0 and is not valid in the result.
    """
    steps = algorithm.steps
    if block is not None:
        return _find_regions_of_block(steps, layout, is_valid, unit, block)
    addresses = []
    for side, (kinds, _) in _SIDES.items():
        buffer, offset = getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset")
        base = layout.base[steps.rank, np.minimum(buffer, Buffer.SCRATCH)]
        addresses.append(np.where(steps.is_kind(*kinds) & is_valid, base + offset // unit, -1))
    source, destination = addresses
    count = np.where(is_valid, steps.count // unit, 0)
    return Regions(source, destination, count, is_valid, layout.total)


def _find_regions_of_block(
    steps: StepTable, layout: MemoryLayout, is_valid: BoolArray, unit: int, block: UnitBlock
) -> Regions:
    """Compute the regions of the steps within one block of units, in groups of `unit` units.

    The rules are those of `find_regions`. Each region is first cut to the units from `block.first`
    to `block.stop`. Offsets and counts are then divided by `unit`, rounded down. Addresses are
    those of `layout`; a side that the kind of step does not use has the address -1.

    A step that is not in `is_valid` (bool[rows]), or has no units in the block, has address -1 on
    both sides and count 0. A step is valid in the result if its count is above 0.
    """
    stops = block.positions + steps.count
    rows = np.flatnonzero(is_valid & (block.positions < block.stop) & (stops > block.first))
    begin = np.maximum(block.positions[rows], block.first)
    rank = steps.rank[rows]
    addresses = []
    for side, (kinds, _) in _SIDES.items():
        buffer = np.minimum(getattr(steps, f"{side}_buffer")[rows], Buffer.SCRATCH)
        offset = (begin - block.starts[rank, buffer]) // unit
        address = np.full(len(steps), -1)
        is_used = np.isin(steps.kind[rows], [int(kind) for kind in kinds])
        address[rows] = np.where(is_used, layout.base[rank, buffer] + offset, -1)
        addresses.append(address)
    count = np.zeros(len(steps), np.int64)
    count[rows] = (np.minimum(stops[rows], block.stop) - begin) // unit
    return Regions(addresses[0], addresses[1], count, count > 0, layout.total)


def common_unit(algorithm: Algorithm) -> int:
    """Return the largest number of units that divides all offsets, counts, buffer sizes and parts.

    It is at least 1. A part is `units_per_rank`, or a count of an uneven collective. Parts are
    ignored for a collective with a contract.
    """
    steps, collective = algorithm.steps, algorithm.collective
    columns = [steps.src_offset, steps.dst_offset, steps.count, _buffer_sizes(algorithm).ravel()]
    # gcd(0, n) is n: zero offsets and empty buffers have no effect.
    divisors = [int(np.gcd.reduce(column)) for column in columns if len(column)]
    if collective.counts is not None:
        divisors.append(collective.counts.common_divisor)
    elif collective.contract is None:
        divisors.append(collective.units_per_rank)
    return max(1, int(np.gcd.reduce(divisors)))


def in_largest_units(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm in the largest units that divide all its sizes and offsets.

    N (`common_unit`) is the greatest common divisor of all offsets and counts of steps, of the
    sizes of all buffers, and of the units per rank of a collective without contract. These numbers
    and `unit_count` are divided by N; the bytes stay the same. For example, offsets (0, 4) and
    counts (2, 4) with buffers of 8 units become (0, 2), (1, 2) and 4.

    The same object is returned if N is 1, and for a custom collective whose contract has an
    expected result, which is defined per unit.
    """
    unit = common_unit(algorithm)
    contract = algorithm.collective.contract
    if unit == 1 or (contract is not None and contract.expected is not None):
        return algorithm
    steps = algorithm.steps
    columns = {name: getattr(steps, name) // unit for name in ("src_offset", "dst_offset", "count")}
    return replace(
        algorithm,
        collective=algorithm.collective.in_blocks(unit),
        steps=replace(steps, **columns),
        scratch_units=algorithm.scratch_units // unit,
    )


def adjacent_conflicts(regions: Regions, position: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return pairs of rows (earlier, later) that access a common block, at least one writing it.

    `position`: int64[rows], the position of every row in a linear extension of happens-before, -1
    for rows that never run, which are in no pair. Per block, only neighbours in this order are
    paired, as by `pair_neighbours`: each read with the last write before it and with the next write
    after it, and two writes only if no read is between them. A step that reads and writes a block
    counts as a writer, and does not conflict with itself.

    If some access is split at borders of other accesses (`_split_into_atoms`), pairs are distinct
    and ascending by the position of the earlier row, then of the later one. Otherwise they have the
    order of `pair_neighbours`, with blocks ascending, and a pair with two common regions is listed
    for each. Both arrays are empty without accesses.

    This is sufficient for an exact verdict. Two conflicting accesses are connected by a chain of
    such neighbours; if all of these are ordered by happens-before, so are the two, and a
    neighbouring pair that is not ordered is itself a race. Takes one sort of the accesses. Raises
    `InputError` (`too-large`) if splitting gives more than `MAX_ACCESSES` parts.
    """
    # A read of the region that the same step writes is covered by the write.
    is_other = regions.source != regions.destination
    reads = np.flatnonzero((position >= 0) & (regions.source >= 0) & is_other)
    writes = np.flatnonzero((position >= 0) & (regions.destination >= 0))
    row = np.concatenate([reads, writes])
    start = np.concatenate([regions.source[reads], regions.destination[writes]])
    is_write = np.arange(len(row)) >= len(reads)
    atoms, owner = _split_into_atoms(start, regions.count[row])
    runs = np.flatnonzero(position >= 0)
    nodes = len(runs)
    # Keys contain positions instead of rows, so that sorting them sorts by time.
    row_at = np.empty(nodes, np.int64)
    row_at[position[runs]] = runs
    keys = sort_keys(atoms, position[row[owner]], is_write[owner], nodes)
    block, place_in_order = np.divmod(keys >> 1, max(nodes, 1))
    earlier, later = pair_neighbours(block, (keys & 1).astype(np.bool_))
    earlier, later = place_in_order[earlier], place_in_order[later]
    # If accesses were split, two steps may share several atoms.
    if len(atoms) > len(start):
        earlier, later = np.divmod(distinct(earlier * nodes + later), nodes)
    return row_at[earlier], row_at[later]


def _find_outside(
    steps: StepTable, side: str, sizes: Int64Array, is_empty: BoolArray, findings: Findings
) -> BoolArray:
    """Return which steps read ("src") or write ("dst") outside a buffer: bool[rows].

    Such a step has a negative offset, or offset + count above the size of the buffer. False for
    rows in `is_empty`, for UNKNOWN buffers, and for kinds of steps without this side. The first
    `CAP` are added to `findings` (`out-of-bounds`), and the others are counted. `sizes`:
    int64[ranks, 3], units of every buffer.
    """
    kinds, verb = _SIDES[side]
    buffer, offset = getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset")
    # UNKNOWN has no size; it is masked out below.
    known = np.minimum(buffer, Buffer.SCRATCH)
    size = np.where(buffer <= Buffer.SCRATCH, sizes[steps.rank, known], 0)
    # offset + count is not computed: it could overflow.
    is_outside: BoolArray = (offset < 0) | (steps.count > size) | (offset > size - steps.count)
    is_outside &= steps.is_kind(*kinds) & ~is_empty & (buffer != Buffer.UNKNOWN)

    def say(row: int) -> str:
        text = region(int(buffer[row]), int(offset[row]), int(steps.count[row]))
        claim = f"{verb} {text}, but that buffer has {int(size[row])} units"
        return f"{claim}: {action(steps, row)}"

    findings.add_rows("out-of-bounds", steps, np.flatnonzero(is_outside), say)
    return is_outside


def _buffer_sizes(algorithm: Algorithm) -> Int64Array:
    """Return the sizes of INPUT, OUTPUT and SCRATCH in units: int64[ranks, 3], in this order."""
    collective = algorithm.collective
    columns = [collective.input_units(), collective.output_units(), algorithm.scratch_units]
    return np.stack(columns, axis=1)


def _split_into_atoms(starts: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Split accesses at the borders of all accesses; return (atom, index of the access) per part.

    `starts`, `counts`: first block and number of blocks (1 or more) of each access. Borders are the
    first block of every access and the first block after it. An atom is the range between two
    neighbouring borders, so every access covers all of it or none. Its number is the index of its
    lower border among the distinct borders, ascending from 0. Parts are in the order of the
    accesses, and within an access ascending by atom. Example: starts [0, 2] and counts [4, 4] give
    atoms [0, 1, 1, 2] of the accesses [0, 0, 1, 1].

    If all counts are 1, or without accesses, atoms are numbered by their blocks instead: the result
    is `starts` itself and the indices 0, 1, .... Otherwise raises `InputError` (`too-large`) for
    more than `MAX_ACCESSES` parts. The cost depends on the number of overlaps, not on sizes.
    """
    owner = np.arange(len(starts))
    # Accesses to single blocks are atoms.
    if not len(starts) or int(counts.max()) == 1:
        return starts, owner
    # First blocks of accesses, and first blocks after them.
    borders = distinct(np.concatenate([starts, starts + counts]))
    first = np.searchsorted(borders, starts)
    length = np.searchsorted(borders, starts + counts) - first
    total = int(length.sum())
    if total > MAX_ACCESSES:
        counted = f"{total} overlapping accesses are too many to check for races"
        raise InputError(f"{counted} (limit {MAX_ACCESSES})", code="too-large")
    return expanded_ranges(first, length), np.repeat(owner, length)


def sort_keys(atoms: Int64Array, places: Int64Array, is_write: BoolArray, nodes: int) -> Int64Array:
    """Return one key per access of a step to an atom, ascending.

    A key is (atom * nodes + position) * 2 + write flag. An atom is a range of memory that
    every access covers fully or not at all. `places`: position of the step of each access,
    below `nodes`. A step has one key per atom; the flag is 1 if any of its accesses to the
    atom writes. If the largest atom times `nodes` is 2^61 or more, the atoms in the keys
    are their indices among the distinct atoms, so that keys fit into 64 bits.
    """
    largest = int(atoms.max(initial=0))
    if largest * max(nodes, 1) >= 1 << 61:
        # Consecutive numbers of atoms, so that the key fits 64 bits.
        _, atoms = np.unique(atoms, return_inverse=True)
    keys = np.sort((atoms * nodes + places) * 2 + is_write)
    # Keys of the accesses of one step to one atom differ in the flag only.
    is_last_of_step = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:] >> 1, keys[:-1] >> 1, out=is_last_of_step[:-1])
    return keys[is_last_of_step]


def pair_neighbours(block: Int64Array, is_write: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Return pairs of accesses (earlier, later) that must keep their order, as int64 indices.

    `block`: memory block of each access; accesses are sorted by block, then by position in it.
    `is_write`: whether it is a write. Within a block, the pairs are:

    - the last write before an access, and this access; for a write only if no read is between
      them
    - a read, and the next write after it

    The pairs of the first kind come first, ascending by their later access; then those of the
    second kind, ascending by their read. Other pairs of writes are left out, because the pairs
    with the reads between them imply their order.
    """
    index = np.arange(len(block))
    if not len(index):
        return index, index
    none = len(index)
    is_first = run_mask(block)
    first = np.maximum.accumulate(np.where(is_first, index, 0))
    write_so_far = np.maximum.accumulate(np.where(is_write, index, -1))
    last_write = np.concatenate([[-1], write_so_far[:-1]])
    # A write is paired with the write before it only if they are adjacent.
    is_direct = ~is_write | (last_write == index - 1)
    after_write = (last_write >= first) & is_direct
    is_end = np.roll(is_first, -1)
    end = suffix_least(np.where(is_end, index, none))
    next_write = suffix_least(np.where(is_write, index, none))
    # A read is paired with the next write of its block, if there is one.
    before_write = ~is_write & (next_write <= end)
    earlier = np.concatenate([last_write[after_write], index[before_write]])
    return earlier, np.concatenate([index[after_write], next_write[before_write]])
