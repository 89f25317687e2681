"""The order in which ranks can issue the nodes of a job."""

from __future__ import annotations

import heapq

import numpy as np
from collhub_columns import Int64Array

from hub_core.model import NodeColumns, NodeKind


def collectives_in_order(nodes: NodeColumns) -> Int64Array:
    """The collectives of all ranks, by rank in the order in which a rank can issue them.

    Of nodes that wait for nothing more, the smallest id goes first, as in ASTRA-sim.
    """
    parents, children = nodes.edges()
    missing = np.bincount(children, minlength=len(nodes)).tolist()
    order = np.argsort(parents, kind="stable")
    targets, starts = (
        children[order].tolist(),
        np.searchsorted(parents[order], range(len(nodes) + 1)),
    )
    identity, issued = nodes.identity.tolist(), []
    bounds = nodes.rank_indptr.tolist()
    for rank in range(nodes.num_ranks):
        rows = range(bounds[rank], bounds[rank + 1])
        free = [(identity[row], row) for row in rows if not missing[row]]
        heapq.heapify(free)
        while free:
            _, row = heapq.heappop(free)
            issued.append(row)
            for child in targets[starts[row] : starts[row + 1]]:
                missing[child] -= 1
                if not missing[child]:
                    heapq.heappush(free, (identity[child], child))
    found = np.asarray(issued, np.int64)
    collectives: Int64Array = found[nodes.kind[found] == NodeKind.COLLECTIVE]
    return collectives
