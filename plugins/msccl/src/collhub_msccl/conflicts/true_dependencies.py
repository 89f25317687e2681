"""Complete the data dependencies of a step table, so that it stays right without program order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_msccl.conflicts.accesses import Edges, conflicts_within_blocks, find_accesses
from collhub_msccl.conflicts.between_blocks import Clocks, conflicts_between_blocks, tell_clocks
from hub_core.collectives import Collective
from hub_core.steps import COLUMN_DTYPES, StepTable

Int64Array = npt.NDArray[np.int64]


def with_true_dependencies(
    table: StepTable, collective: Collective, scratch_units: Int64Array, block_indptr: Int64Array
) -> StepTable:
    """Add a data dependency for every two conflicting steps of a rank that program order and dependencies put in
    order, as far as it does not follow from others.

    Lanes are thread blocks 0..k-1 of each rank, `block_indptr`: int64[ranks + 1]. In place, INPUT and OUTPUT are one
    memory where the collective claims that mode. Conflicts that nothing orders stay unordered. Where steps touch
    more units than can be looked at, all of program order becomes data.
    """
    columns = {name: getattr(table, name) for name in COLUMN_DTYPES}
    data, control = (
        _edges(table.data_indptr, table.data_indices),
        _edges(table.control_indptr, table.control_indices),
    )
    clocks = tell_clocks(table, block_indptr)
    found = [data]
    for in_place, is_claimed in ((True, collective.in_place), (False, collective.out_of_place)):
        if is_claimed:
            base = collective.memory_layout(in_place, scratch_units).base
            found += _conflicts(table, base, clocks, block_indptr) or [control]
    completed = np.concatenate([p for p, _ in found]), np.concatenate([c for _, c in found])
    return StepTable.from_columns(table.num_ranks, columns, completed, control)


def _conflicts(
    table: StepTable, base: Int64Array, clocks: Clocks | None, block_indptr: Int64Array
) -> list[Edges] | None:
    block = block_indptr[table.rank] + table.lane
    columns = {name: getattr(table, name) for name in COLUMN_DTYPES}
    accesses = find_accesses(columns, block, base) if clocks else None
    if clocks is None or accesses is None:
        return None
    if not clocks.is_any:
        return [conflicts_within_blocks(accesses)]
    between = conflicts_between_blocks(accesses, clocks, table)
    return None if between is None else [conflicts_within_blocks(accesses), between]


def _edges(indptr: Int64Array, indices: Int64Array) -> Edges:
    return indices, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
