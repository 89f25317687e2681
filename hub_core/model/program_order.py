"""Sort the rows of every rank topologically by their dependencies."""

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
    """Return an order of the rows, int64[rows], in which every parent precedes its child.

    Rows must be grouped by rank, and edges must stay within a rank. Only ranks with an edge to an
    earlier row are reordered; among ready rows the first one is taken. Raises `InputError` for a
    cycle, with its first row.
    """
    parents = np.concatenate([parents for parents, _ in edges])
    children = np.concatenate([children for _, children in edges])
    # Sorted by child, the edges of a rank are one slice, because rows are grouped by rank.
    by_child = np.argsort(children, kind="stable")
    parents, children = parents[by_child], children[by_child]
    order = np.arange(len(rank), dtype=np.int64)
    # Ranks in which all parents precede their children keep their order.
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
    """Kahn's algorithm with a heap; rows in cycles and rows that wait for them are omitted."""
    waiting = [0] * rows
    successors: list[list[int]] = [[] for _ in range(rows)]
    for parent, child in zip(parents, children, strict=True):
        waiting[child] += 1
        successors[parent].append(child)
    # An ascending list is a heap.
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
