"""Complete the data dependencies of a step table, so that it is correct without program order.

The runtimes execute the steps of a thread block in order; in the model this order is control. Data
dependencies are those that every execution must respect: RAW, WAR and WAW on the same memory.
"""

from __future__ import annotations

import numpy as np

from collhub_msccl.conflicts.accesses import Edges, find_accesses, find_conflicts_within_blocks
from collhub_msccl.conflicts.between_blocks import find_conflicts_between_blocks
from collhub_msccl.conflicts.clocks import Clocks, build_clocks
from hub_core.columns import Int64Array, group_of_entry
from hub_core.model import COLUMN_DTYPES, Collective, StepTable


def insert_true_dependencies(
    table: StepTable,
    collective: Collective,
    scratch_units: Int64Array,
    block_indptr: Int64Array,
) -> StepTable:
    """Return the table with a data dependency for every two ordered, conflicting steps of a rank.

    Two steps are ordered by program order and dependencies; implied dependencies are omitted, and
    unordered conflicts stay unordered. Lanes must be thread blocks 0..k-1 of each rank;
    `block_indptr`: int64[ranks + 1]. Both modes that the collective claims are considered; in
    place, INPUT and OUTPUT share memory. If there are too many accesses to analyse, the complete
    program order becomes data dependencies.
    """
    data = _expand_edges(table.data_indptr, table.data_indices)
    control = _expand_edges(table.control_indptr, table.control_indices)
    # The order does not depend on the mode, the memory does.
    clocks = build_clocks(table, block_indptr)
    edge_lists = [data]
    for in_place in list_claimed_modes(collective):
        base = collective.memory_layout(in_place, scratch_units).base
        edge_lists += _find_conflicts(table, base, clocks, block_indptr) or [control]
    parents = np.concatenate([parent for parent, _ in edge_lists])
    children = np.concatenate([child for _, child in edge_lists])
    return StepTable.from_columns(
        table.num_ranks,
        _get_columns(table),
        (parents, children),
        control,
    )


def list_claimed_modes(collective: Collective) -> list[bool]:
    """Modes that the collective claims, in place (True) first; each has different aliases."""
    modes = []
    if collective.in_place:
        modes.append(True)
    if collective.out_of_place:
        modes.append(False)
    return modes


def _find_conflicts(
    table: StepTable,
    base: Int64Array,
    clocks: Clocks | None,
    block_indptr: Int64Array,
) -> list[Edges] | None:
    """Conflicts in one mode, whose buffers begin at `base`; None if there are too many."""
    if clocks is None:
        return None
    block = block_indptr[table.rank] + table.lane
    accesses = find_accesses(_get_columns(table), block, base)
    if accesses is None:
        return None
    within = find_conflicts_within_blocks(accesses)
    # No thread block waits for another one, so accesses of different blocks are unordered.
    if not clocks.is_any:
        return [within]
    between = find_conflicts_between_blocks(accesses, clocks, table)
    return None if between is None else [within, between]


def _get_columns(table: StepTable) -> dict[str, Int64Array]:
    """Columns of a table by name."""
    return {name: getattr(table, name) for name in COLUMN_DTYPES}


def _expand_edges(indptr: Int64Array, indices: Int64Array) -> Edges:
    """Pairs (parent, child) of a CSR table of parents."""
    return indices, group_of_entry(indptr)
