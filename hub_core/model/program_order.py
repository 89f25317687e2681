"""Put the rows of every rank in an order that its dependencies allow."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, distinct
from hub_core.model.diagnostics import InputError, Location


def ordered_rows(
    rank: npt.NDArray[np.int32],
    rank_indptr: Int64Array,
    edges: Sequence[tuple[Int64Array, Int64Array]],
    source_line: npt.NDArray[np.int32],
    file: str | None,
) -> Int64Array:
    """The rows, int64[rows], so that every parent of `edges` stands before its child.

    Rows are grouped by rank already, and edges stay within a rank. Only ranks with an edge that
    points forward are touched; of the rows that are ready, the earliest goes first. Raises
    `InputError` for a cycle, naming its first row.
    """
    parents = np.concatenate([parents for parents, _ in edges])
    children = np.concatenate([children for _, children in edges])
    # Edges by child: those of a rank are then one slice, since rows are grouped by rank.
    by_child = np.argsort(children, kind="stable")
    parents, children = parents[by_child], children[by_child]
    order = np.arange(len(rank), dtype=np.int64)
    # A rank whose edges all point backwards is in a valid order already, and keeps it.
    for touched in distinct(rank[children[parents >= children]]).tolist():
        start, stop = int(rank_indptr[touched]), int(rank_indptr[touched + 1])
        low, high = np.searchsorted(children, [start, stop])
        local_parents = (parents[low:high] - start).tolist()
        local_children = (children[low:high] - start).tolist()
        local = _earliest_first(stop - start, local_parents, local_children)
        if len(local) < stop - start:
            stuck = min(set(range(stop - start)) - set(local))
            line = int(source_line[start + stuck])
            raise InputError(
                "the dependencies form a cycle, so this step can never run",
                location=Location(file, line, None, touched, stuck),
                cure="remove one dependency of the cycle",
                code="cyclic-dependencies",
            )
        order[start:stop] = start + np.asarray(local, np.int64)
    return order


def _earliest_first(rows: int, parents: list[int], children: list[int]) -> list[int]:
    """Kahn's algorithm with a heap; rows of cycles, and those behind them, are left out."""
    waiting = [0] * rows
    successors: list[list[int]] = [[] for _ in range(rows)]
    for parent, child in zip(parents, children, strict=True):
        waiting[child] += 1
        successors[parent].append(child)
    # Ascending, and so a heap.
    ready = [row for row in range(rows) if not waiting[row]]
    order: list[int] = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for child in successors[row]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, child)
    return order
