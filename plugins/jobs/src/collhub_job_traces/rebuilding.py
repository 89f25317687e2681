"""Rebuild the nodes of a job from changed columns and dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array
from hub_core.model import NODE_DTYPES, NodeColumns, Workload

Edges = tuple[Int64Array, Int64Array]
Columns = dict[str, npt.NDArray[np.generic]]


def columns_of(nodes: NodeColumns) -> Columns:
    """Copies of the columns by name."""
    columns: Columns = {}
    for name in NODE_DTYPES:
        # The columns of a workload are read-only.
        columns[name] = getattr(nodes, name).copy()
    return columns


def rebuilt(
    workload: Workload,
    columns: Mapping[str, npt.NDArray[np.generic]],
    data: Edges,
    control: Edges,
    changed: BoolArray,
) -> Workload:
    """The job of other columns and dependencies.

    `changed`: rows whose values or dependencies are others; the records that a reader kept of them
    are given up, since they would bring the old ones back.
    """
    extra = np.where(changed, -1, columns["extra"])
    nodes = NodeColumns.from_columns(workload.num_ranks, {**columns, "extra": extra}, data, control)
    return replace(workload, nodes=nodes)
