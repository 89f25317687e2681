"""Rebuild jobs from changed columns, remove markers, order collectives and join them into buckets.

Markers are nodes without a duration; ASTRA-sim does not finish them (type INVALID). Source of the
buckets: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB
2020), section 3.2.3: buckets of 25 MiB.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    run_mask,
    topological_levels,
)
from hub_core.model import NODE_DTYPES, NodeColumns, NodeKind, Workload

Edges = tuple[Int64Array, Int64Array]
Columns = dict[str, npt.NDArray[np.generic]]


def columns_of(nodes: NodeColumns) -> Columns:
    """Return a writable copy of all columns of nodes by name; edges are not included."""
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
    """Return a copy of the job with new columns and dependencies of its nodes.

    `columns`: all columns by name, ordered by rank; `data`, `control`: (parent rows, child
    rows). `changed`: bool per row, for changed values or dependencies. Their preserved records
    are dropped (`extra` becomes -1), because the writer would restore the old values from them.
    Raises `InputError` for invalid columns, and for dependencies on missing nodes or between
    ranks.
    """
    extra = np.where(changed, -1, columns["extra"])
    nodes = NodeColumns.from_columns(workload.num_ranks, {**columns, "extra": extra}, data, control)
    return replace(workload, nodes=nodes)


class Bridged(NamedTuple):
    """Job without markers; `kept`: ascending rows of its nodes in the original job."""

    workload: Workload
    kept: Int64Array


def bridge_markers(workload: Workload) -> Bridged:
    """Return the job without markers, with dependencies between the nodes before and after them.

    If a chain of markers leads from node a to node b, b gets a control dependency on a, whatever
    the kinds of the dependencies in the chain. Each pair gets one, also if b already depends on a
    directly. New dependencies follow the direct ones, which remain with their kind.

    A remaining node that had a marker as parent loses its preserved record (`extra` becomes -1),
    because the writer would restore the old dependencies from it. `kept`: int64, ascending rows of
    the remaining nodes in `workload`. Without markers, `workload` itself is returned, with all its
    rows.
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
    """Return the edges (parents, children) of which neither end is a marker, in their order."""
    keeps = ~is_marker[edges[0]] & ~is_marker[edges[1]]
    return edges[0][keeps], edges[1][keeps]


def _find_bridges(data: Edges, control: Edges, is_marker: BoolArray) -> Edges:
    """Return the distinct pairs (parents, children) of nodes that a chain of markers connects.

    A chain leads from a node that is no marker over one or more markers to a node that is no
    marker, by `data` and `control` edges in any mixture. So direct edges are not included by
    themselves. With edges a to m1, m1 to m2, m2 to b and markers m1, m2, the only pair is (a, b).
    Cycles of markers are permitted and do not change the result.

    The pairs are two int64 arrays, ascending by parent, then child; empty without chains. Edges are
    (parents, children) as rows; `is_marker` is by row. Cost: number of pairs times the length of
    the longest chain.
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
    """Return the rows of all collectives as int64, by rank, then in issue order.

    The issue order of a rank covers all its nodes, not only collectives: the next node is always
    the one with the smallest id whose parents (data and control) are all issued. Of equal ids, the
    lower row is first. Durations are ignored, as in ASTRA-sim. Collectives on a cycle of
    dependencies, or after one, are left out. Without collectives the result is empty.
    """
    parents, children = nodes.edges()
    starts, targets = csr(parents, children, len(nodes))
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
    """Return the rows of one rank in issue order: int64; rows on or after a cycle are left out.

    The next row is always the one with the lowest `identity` whose parents have all been issued; of
    equal identities, the lowest row. Row i has the children `children[pointer[i] : pointer[i +
    1]]`; repeated children are allowed. For example, with the identities 5, 3, 4 and no children,
    the order is 1, 2, 0. Empty without rows.
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


@dataclass(frozen=True, slots=True, eq=False)
class JoinedJob:
    """A job whose buckets each replace several collectives.

    `row_of`: int64[nodes of the unchanged job], the row in `workload` of each node or of its
    bucket. `joined_count`, `bucket_count`: collectives that were joined, over all ranks, and the
    buckets that replace them; both 0 if nothing is joined.
    """

    workload: Workload
    row_of: Int64Array
    joined_count: int
    bucket_count: int


class BucketPlanner:
    """Plans buckets of collectives for several limits of their size, in a job without cycles.

    `candidates`: bool[nodes], the collectives that may be joined, all of one kind. Two collectives
    of a rank are never joined if one of them waits for the other, over any chain of dependencies.
    """

    def __init__(self, workload: Workload, candidates: BoolArray) -> None:
        self.workload = workload
        nodes = workload.nodes
        edges = nodes.edges()
        order = topological_levels(len(nodes), edges[0], edges[1])
        # The most candidates on a path to each node: candidates of equal depth do not wait for each
        # other.
        depth = candidates.astype(np.int64)
        level = np.searchsorted(order.level_indptr, order.position, side="right")
        by_level = np.argsort(level[edges[1]], kind="stable")
        bounds = np.searchsorted(level[edges[1]][by_level], np.arange(len(order.level_indptr) + 1))
        for first, stop in pairwise(bounds.tolist()):
            parents, children = (side[by_level[first:stop]] for side in edges)
            np.maximum.at(depth, children, depth[parents] + candidates[children])
        rows = np.flatnonzero(candidates)
        rows = rows[np.lexsort((nodes.identity[rows], nodes.rank[rows], nodes.group[rows]))]
        # By group: for each of its ranks the rows and depths of its candidates, in their order.
        self._sequences: list[list[tuple[Int64Array, Int64Array]]] = []
        for group in distinct(nodes.group[rows]).tolist():
            of_group = rows[nodes.group[rows] == group]
            by_rank = [of_group[nodes.rank[of_group] == rank] for rank in workload.members(group)]
            self._sequences.append([(of_rank, depth[of_rank]) for of_rank in by_rank])

    def plan(self, limit_bytes: int) -> Int64Array:
        """Assign collectives to buckets of at most `limit_bytes`; return the bucket of each node.

        A bucket is identified by the row of its last member: int64[nodes], with the own row for a
        node that is not joined. The candidates (given to the class) of each group and rank are
        taken in ascending order of their ids, and a bucket has at least two consecutive ones. A
        bucket ends before a candidate with which it would exceed the limit, and before one with
        another dependency depth (number of candidates on the longest path to it), so that no member
        waits for another. A candidate larger than the limit is not joined. A group remains
        unchanged if the buckets of its ranks differ in the positions of their members.
        """
        sizes = self.workload.nodes.bytes
        target = np.arange(len(self.workload.nodes))
        for ranks in self._sequences:
            plans = [_fill(sizes[rows], depth, limit_bytes) for rows, depth in ranks]
            if any(plan != plans[0] for plan in plans):
                continue
            for rows, _ in ranks:
                for first, stop in plans[0]:
                    target[rows[first:stop]] = rows[stop - 1]
        return target


def join_collectives(workload: Workload, target: Int64Array) -> JoinedJob:
    """Replace collectives by buckets: one collective with the bytes of all members each.

    `target`: int64[nodes], the row of the bucket of every node, or the node's row if it is not
    joined. Members of a bucket must not depend on each other. `workload` is not changed.

    - The node at the row of a bucket gets the bytes and dependencies of all members; other
      columns stay.
    - Other members are removed. Nodes that depended on them depend on the bucket.
    - Equal dependencies of one kind (data or control) become one, in the entire job.
    - Preserved records of buckets, and of nodes that depended on a removed member, are
      dropped.

    The remaining rows keep their order. The result has the new job, the new row of every old
    node (that of the bucket for a removed one), the number of collectives in buckets (kept
    ones included) and the number of buckets. Both are 0 if nothing is joined. Raises
    `InputError` if a dependency would connect two ranks.
    """
    nodes = workload.nodes
    joined = target != np.arange(len(nodes))
    kept_rows = np.flatnonzero(~joined)
    position_of_row = positions_in(kept_rows, len(nodes))
    columns = columns_of(nodes)
    np.add.at(columns["bytes"], target[joined], nodes.bytes[joined])
    changed = np.zeros(len(nodes), np.bool_)
    changed[target[joined]] = True
    edges = []
    for parents, children in (nodes.data_edges, nodes.control_edges):
        changed[children[joined[parents]]] = True
        pairs = np.stack([position_of_row[target[parents]], position_of_row[target[children]]])
        # Of equal dependencies the first remains, at its place.
        order = np.lexsort(pairs[::-1])
        pairs = pairs[:, np.sort(order[run_mask(*pairs[:, order])])]
        edges.append((pairs[0], pairs[1]))
    columns = {name: column[kept_rows] for name, column in columns.items()}
    count, buckets = int(joined.sum()), len(distinct(target[joined]))
    return JoinedJob(
        rebuilt(workload, columns, edges[0], edges[1], changed[kept_rows]),
        position_of_row[target],
        count + buckets,
        buckets,
    )


def _fill(sizes: Int64Array, depths: Int64Array, limit: int) -> list[tuple[int, int]]:
    """Divide entries into buckets; return (first, stop) of those with at least two entries.

    `sizes`: bytes; `depths`: dependency depths; [] without entries. A bucket ends before an
    entry with which it would exceed `limit` bytes, or whose depth differs from that of its
    first entry. An entry above the limit is a bucket of one entry.
    """
    buckets, first, filled = [], 0, 0
    values = zip(sizes.tolist(), depths.tolist(), strict=True)
    for index, (size, depth) in enumerate(values):
        if index and (filled + size > limit or depth != depths[first]):
            buckets.append((first, index))
            first, filled = index, 0
        filled += size
    buckets.append((first, len(sizes)))
    return [(begin, stop) for begin, stop in buckets if stop - begin > 1]
