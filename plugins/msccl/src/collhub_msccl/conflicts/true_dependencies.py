"""Complete the data dependencies of a step table, so that it stays right without program order.

The runtimes order all steps of a thread block; in the model that is control. What must hold whoever
executes the steps is data: read after write, write after read and write after write of one memory.
"""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array, group_of_entry

from collhub_msccl.conflicts.accesses import Edges, conflicts_within_blocks, find_accesses
from collhub_msccl.conflicts.between_blocks import conflicts_between_blocks
from collhub_msccl.conflicts.clocks import Clocks, tell_clocks
from hub_core.model import COLUMN_DTYPES, Collective, StepTable


def with_true_dependencies(
    table: StepTable,
    collective: Collective,
    scratch_units: Int64Array,
    block_indptr: Int64Array,
) -> StepTable:
    """Add a data dependency for every two conflicting steps of a rank that are in order.

    In order by program order and dependencies, and as far as it does not follow from others. Lanes
    are thread blocks 0..k-1 of each rank, `block_indptr`: int64[ranks + 1]. In place, INPUT and
    OUTPUT are one memory where the collective claims that mode. Conflicts that nothing orders stay
    unordered. Where steps touch more units than can be looked at, all of program order becomes
    data.
    """
    data = _edges(table.data_indptr, table.data_indices)
    control = _edges(table.control_indptr, table.control_indices)
    # Order does not depend on the mode, memory does.
    clocks = tell_clocks(table, block_indptr)
    found = [data]
    for in_place in claimed_modes(collective):
        base = collective.memory_layout(in_place, scratch_units).base
        found += _conflicts(table, base, clocks, block_indptr) or [control]
    parents = np.concatenate([parent for parent, _ in found])
    children = np.concatenate([child for _, child in found])
    return StepTable.from_columns(
        table.num_ranks,
        _columns(table),
        (parents, children),
        control,
    )


def claimed_modes(collective: Collective) -> list[bool]:
    """Modes to look at, in-place first: each aliases other memory."""
    modes = []
    if collective.in_place:
        modes.append(True)
    if collective.out_of_place:
        modes.append(False)
    return modes


def _conflicts(
    table: StepTable,
    base: Int64Array,
    clocks: Clocks | None,
    block_indptr: Int64Array,
) -> list[Edges] | None:
    """Conflicts in one mode, whose buffers begin at `base`; None where they are too many."""
    if clocks is None:
        return None
    block = block_indptr[table.rank] + table.lane
    accesses = find_accesses(_columns(table), block, base)
    if accesses is None:
        return None
    within = conflicts_within_blocks(accesses)
    # No thread block waits for another: nothing between them is in order.
    if not clocks.is_any:
        return [within]
    between = conflicts_between_blocks(accesses, clocks, table)
    return None if between is None else [within, between]


def _columns(table: StepTable) -> dict[str, Int64Array]:
    """The columns of a table by name."""
    return {name: getattr(table, name) for name in COLUMN_DTYPES}


def _edges(indptr: Int64Array, indices: Int64Array) -> Edges:
    """Pairs (parent, child) of a CSR table of parents."""
    return indices, group_of_entry(indptr)
