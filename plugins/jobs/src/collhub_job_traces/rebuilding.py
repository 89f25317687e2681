"""Rebuild jobs from changed columns, remove markers, and order collectives.

Markers are nodes without a duration; ASTRA-sim does not finish them (type INVALID).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    BoolArray,
    Int64Array,
    csr,
    distinct,
    expanded_ranges,
    positions_in,
    row_pointer,
    stable_order,
)
from hub_core.model import NODE_DTYPES, NodeColumns, NodeKind, Workload

Edges = tuple[Int64Array, Int64Array]
Columns = dict[str, npt.NDArray[np.generic]]


def columns_of(nodes: NodeColumns) -> Columns:
    """Copy the columns, which are read-only in a workload, by name."""
    columns: Columns = {}
    for name in NODE_DTYPES:
        columns[name] = getattr(nodes, name).copy()
    return columns


def rebuilt(
    workload: Workload,
    columns: Mapping[str, npt.NDArray[np.generic]],
    data: Edges,
    control: Edges,
    changed: BoolArray,
) -> Workload:
    """Rebuild the job with new columns and dependencies.

    `changed`: rows with changed values or dependencies. Their preserved records are dropped,
    because the writer would restore the old values from them.
    """
    extra = np.where(changed, -1, columns["extra"])
    nodes = NodeColumns.from_columns(workload.num_ranks, {**columns, "extra": extra}, data, control)
    return replace(workload, nodes=nodes)


class Bridged(NamedTuple):
    """Job without markers; `kept`: ascending rows of its nodes in the original job."""

    workload: Workload
    kept: Int64Array


def bridge_markers(workload: Workload) -> Bridged:
    """Remove all markers; dependencies on a marker become dependencies on its parents.

    A dependency through a marker becomes a control dependency, whatever its kind; direct ones
    remain. The result has the old row of every node that remains, in order. Without markers the job
    is returned unchanged.
    """
    nodes = workload.nodes
    is_marker = nodes.is_kind(NodeKind.MARKER)
    kept_rows = np.flatnonzero(~is_marker)
    if len(kept_rows) == len(nodes):
        return Bridged(workload, kept_rows)
    data, control = nodes.data_edges, nodes.control_edges
    bridges = _find_bridges(data, control, is_marker)
    position_of_row = positions_in(kept_rows, len(nodes))
    changed = np.zeros(len(nodes), np.bool_)
    changed[bridges[1]] = True
    for parents, children in (data, control):
        changed[children[is_marker[parents]]] = True
    columns = {name: column[kept_rows] for name, column in columns_of(nodes).items()}
    direct = _drop_marker_edges(control, is_marker)
    control = np.concatenate([direct[0], bridges[0]]), np.concatenate([direct[1], bridges[1]])
    data = _drop_marker_edges(data, is_marker)
    data = position_of_row[data[0]], position_of_row[data[1]]
    control = position_of_row[control[0]], position_of_row[control[1]]
    return Bridged(rebuilt(workload, columns, data, control, changed[kept_rows]), kept_rows)


def _drop_marker_edges(edges: Edges, is_marker: BoolArray) -> Edges:
    """Keep the edges without markers."""
    keeps = ~is_marker[edges[0]] & ~is_marker[edges[1]]
    return edges[0][keeps], edges[1][keeps]


def _find_bridges(data: Edges, control: Edges, is_marker: BoolArray) -> Edges:
    """Find the distinct pairs (parents, children) of nodes that a chain of markers connects.

    Edges may be of either kind; pairs ascend by parent, then child. Direct edges are not included.
    A cycle of markers ends the search. Cost: number of pairs times the length of the longest chain.
    """
    count = len(is_marker)
    parents, children = (np.concatenate(pair) for pair in zip(data, control, strict=True))
    indptr, before = csr(children, parents, count)
    is_exit = is_marker[parents] & ~is_marker[children]
    parents, children = parents[is_exit], children[is_exit]
    pairs: list[Int64Array] = [np.zeros(0, np.int64)]
    # One round per marker of the longest chain. A cycle of markers yields no new pairs.
    seen = np.zeros(0, np.int64)
    while len(parents):
        counts = indptr[parents + 1] - indptr[parents]
        children = np.repeat(children, counts)
        parents = before[expanded_ranges(indptr[parents], counts)]
        codes = np.setdiff1d(distinct(parents * count + children), seen)
        seen = np.union1d(seen, codes)
        parents, children = np.divmod(codes, count)
        is_end = ~is_marker[parents]
        pairs.append(codes[is_end])
        parents, children = parents[~is_end], children[~is_end]
    joined = distinct(np.concatenate(pairs))
    node_pairs = np.divmod(joined, count)
    return node_pairs[0], node_pairs[1]


def collectives_in_order(nodes: NodeColumns) -> Int64Array:
    """Return the rows of the collectives of all ranks, sorted by rank and by issue order.

    Among ready nodes, the smallest id is issued first, as in ASTRA-sim; durations do not count.
    Cost: ranks with equal ids and dependencies are ordered once.
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
    order = np.concatenate(issued)
    collectives: Int64Array = order[nodes.kind[order] == NodeKind.COLLECTIVE]
    return collectives


def _issue_order(identity: list[int], pointer: list[int], children: list[int]) -> Int64Array:
    """Return the rows of one rank in issue order: parents first, then the lowest identity.

    The next row is always the one with the lowest `identity` among those whose parents have all
    been issued. Row i has the children `children[pointer[i] : pointer[i + 1]]`. Rows that are on or
    behind a cycle are left out.
    """
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
