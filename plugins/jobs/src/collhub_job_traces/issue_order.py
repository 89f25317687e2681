"""The order in which ranks can issue the nodes of a job."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from hub_core.columns import Int64Array, row_pointer, stable_order
from hub_core.model import NodeColumns, NodeKind


def collectives_in_order(nodes: NodeColumns) -> Int64Array:
    """The collectives of all ranks, by rank in the order in which a rank can issue them.

    Of nodes that wait for nothing more, the smallest id goes first, as in ASTRA-sim. Cost: ranks
    with equal ids and dependencies, as most jobs have, are ordered once.
    """
    parents, children = nodes.edges()
    targets = children[stable_order(parents)]
    starts = row_pointer(np.bincount(parents, minlength=len(nodes)))
    bounds = nodes.rank_indptr.tolist()
    known: dict[tuple[bytes, bytes, bytes], Int64Array] = {}
    issued = [np.zeros(0, np.int64)]
    for first, end in pairwise(bounds):
        identity = nodes.identity[first:end]
        pointer = starts[first : end + 1] - starts[first]
        local = targets[starts[first] : starts[end]] - first
        key = identity.tobytes(), pointer.tobytes(), local.tobytes()
        if key not in known:
            known[key] = _issue_order(identity.tolist(), pointer.tolist(), local.tolist())
        issued.append(first + known[key])
    found = np.concatenate(issued)
    collectives: Int64Array = found[nodes.kind[found] == NodeKind.COLLECTIVE]
    return collectives


def _issue_order(identity: list[int], pointer: list[int], children: list[int]) -> Int64Array:
    """Rows of one rank in the order of issue; those of node i are `children[pointer[i]:...]`."""
    missing = [0] * len(identity)
    for child in children:
        missing[child] += 1
    free = [(identity[row], row) for row in range(len(identity)) if not missing[row]]
    heapq.heapify(free)
    issued = []
    while free:
        _, row = heapq.heappop(free)
        issued.append(row)
        for child in children[pointer[row] : pointer[row + 1]]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(free, (identity[child], child))
    return np.asarray(issued, np.int64)
