"""The chunk that every step moves: a unit of the collective's full buffer."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array, group_of_entry
from hub_core.model import Algorithm, Buffer, CollectiveKind, Findings, match_messages

_ROUNDS = 40


def find_chunks(algorithm: Algorithm) -> Int64Array | None:
    """Return the first unit that every step moves: int64 per row, -1 if unknown.

    Units are those of the full buffer; of an all-to-all, unit u of the buffer of rank r has the
    number r * unit_count + u. A region of INPUT or OUTPUT determines its unit. A receive has the
    unit of its message, and a row that reads SCRATCH that of the row which wrote the region and on
    which it depends. None for a custom collective and for unknown regions.
    """
    steps, collective = algorithm.steps, algorithm.collective
    if collective.kind is CollectiveKind.CUSTOM or not algorithm.has_contents:
        return None
    chunk = np.full(len(steps), -1, np.int64)
    reads_input = (steps.src_buffer == Buffer.INPUT) & ~steps.receives
    chunk[reads_input] = _number_units(algorithm, reads_input, steps.src_offset, is_input=True)
    reads_output = (steps.src_buffer == Buffer.OUTPUT) & ~steps.receives
    chunk[reads_output] = _number_units(algorithm, reads_output, steps.src_offset, is_input=False)
    writes_output = (chunk < 0) & (steps.dst_buffer == Buffer.OUTPUT)
    chunk[writes_output] = _number_units(algorithm, writes_output, steps.dst_offset, is_input=False)
    source, shift = _find_sources(algorithm)
    for _ in range(_ROUNDS):
        open_rows = np.flatnonzero((chunk < 0) & (source >= 0))
        known = open_rows[chunk[source[open_rows]] >= 0]
        chunk[known] = chunk[source[known]] + shift[known]
        # Skip one row of every chain, so that chains of n rows need log2 n rounds.
        rest = open_rows[chunk[open_rows] < 0]
        if not len(rest):
            break
        shift[rest] += shift[source[rest]]
        source[rest] = source[source[rest]]
    return chunk


def _number_units(
    algorithm: Algorithm,
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]],
    offset: Int64Array,
    *,
    is_input: bool,
) -> Int64Array:
    """Return the numbers of units at offsets of INPUT or OUTPUT, for the rows of `mask`."""
    collective, traits = algorithm.collective, algorithm.collective.kind.traits
    rank, at = algorithm.steps.rank[mask].astype(np.int64), offset[mask]
    share = collective.units_per_rank
    if traits.split_by_source and traits.split_by_target:
        owner, unit = np.divmod(at, share)
        if is_input:
            return rank * collective.unit_count + at
        return owner * collective.unit_count + rank * share + unit
    is_part = traits.split_by_source if is_input else traits.split_by_target
    return rank * share + at if is_part else at


def _find_sources(algorithm: Algorithm) -> tuple[Int64Array, Int64Array]:
    """Return by row the row from which its data comes, -1 for none, and the offset in its region.

    The source of a receive is its send; that of a row that reads is the last row on which it
    depends and which wrote the first unit that it reads.
    """
    steps = algorithm.steps
    source, shift = np.full(len(steps), -1, np.int64), np.zeros(len(steps), np.int64)
    child = group_of_entry(steps.data_indptr)
    parent = steps.data_indices
    inside = steps.src_offset[child] - steps.dst_offset[parent]
    is_writer = (
        (steps.dst_buffer[parent] == steps.src_buffer[child])
        & (inside >= 0)
        & (inside < steps.count[parent])
        & ~steps.receives[child]
    )
    # Parents ascend, so that the last one remains.
    source[child[is_writer]] = parent[is_writer]
    shift[child[is_writer]] = inside[is_writer]
    pairs = match_messages(steps, Findings())
    source[pairs.receive], shift[pairs.receive] = pairs.send, 0
    return source, shift
