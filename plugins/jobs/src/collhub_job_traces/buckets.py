"""Join consecutive collectives of a group into buckets, as data-parallel frameworks do.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB
2020), section 3.2.3: buckets of 25 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_job_traces.rebuilding import columns_of, rebuilt
from hub_core.columns import BoolArray, Int64Array, distinct, positions_in, topological_levels
from hub_core.model import NodeColumns, Workload


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
    """Plans buckets of collectives for several limits of their size.

    `candidates`: bool[nodes], the collectives that may be joined, all of one kind. Two collectives
    of a rank are never joined if one of them waits for the other, over any chain of dependencies.
    """

    def __init__(self, workload: Workload, candidates: BoolArray) -> None:
        self.workload = workload
        nodes = workload.nodes
        depth = _count_depths(nodes, candidates)
        rows = np.flatnonzero(candidates)
        rows = rows[np.lexsort((nodes.identity[rows], nodes.rank[rows], nodes.group[rows]))]
        # By group: for each of its ranks the rows and depths of its candidates, in their order.
        self._sequences: list[list[tuple[Int64Array, Int64Array]]] = []
        for group in distinct(nodes.group[rows]).tolist():
            of_group = rows[nodes.group[rows] == group]
            by_rank = [of_group[nodes.rank[of_group] == rank] for rank in workload.members(group)]
            self._sequences.append([(of_rank, depth[of_rank]) for of_rank in by_rank])

    def plan(self, limit_bytes: int) -> Int64Array:
        """Return the row of every node's bucket, its own row if it is not joined: int64[nodes].

        For each group and rank, the candidates in order of their identities are put into buckets.
        A bucket ends before the candidate that would make it exceed `limit_bytes`, and before one
        that has another dependency depth (number of candidates on the longest path to it) than
        its first member, so that no member waits for another. A bucket's row is that of its last
        member. A candidate above the limit stays alone. If the ranks of a group get buckets at
        different positions, the whole group is unchanged.
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
    """Replace collectives by buckets as planned by `BucketPlanner.plan`.

    `target`: row of the bucket of every node, the node's own row if it is not joined. A joined row
    is removed; all others remain in order. A bucket has the sum of the bytes of its members, and
    all of their dependencies, each one once. `joined_count` includes the collectives that became
    buckets.
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
        # Equal dependencies of a bucket are merged.
        both = _drop_duplicate_pairs(pairs)
        edges.append((both[0], both[1]))
    columns = {name: column[kept_rows] for name, column in columns.items()}
    count, buckets = int(joined.sum()), len(distinct(target[joined]))
    return JoinedJob(
        rebuilt(workload, columns, edges[0], edges[1], changed[kept_rows]),
        position_of_row[target],
        count + buckets,
        buckets,
    )


def _drop_duplicate_pairs(pairs: Int64Array) -> Int64Array:
    """Drop duplicate columns of a table, keeping the order."""
    order = np.lexsort(pairs[::-1])
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any(np.diff(pairs[:, order], axis=1) != 0, axis=0)
    return pairs[:, np.sort(order[is_new])]


def _count_depths(nodes: NodeColumns, counted: BoolArray) -> Int64Array:
    """Return the maximum number of counted nodes on a path to each node, including itself.

    Counted nodes of equal depth do not wait for each other, so buckets of nodes of equal depth have
    no cyclic dependencies.
    """
    edges = nodes.edges()
    order = topological_levels(len(nodes), edges[0], edges[1])
    depth = counted.astype(np.int64)
    level = np.searchsorted(order.level_indptr, order.position, side="right")
    by_level = np.argsort(level[edges[1]], kind="stable")
    bounds = np.searchsorted(level[edges[1]][by_level], np.arange(len(order.level_indptr) + 1))
    for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        parents, children = (side[by_level[first:stop]] for side in edges)
        np.maximum.at(depth, children, depth[parents] + counted[children])
    return depth


def _fill(sizes: Int64Array, depths: Int64Array, limit: int) -> list[tuple[int, int]]:
    """Return (first, stop) of the buckets with at least two entries, in order.

    A bucket ends before an entry with which it would exceed `limit` bytes, or whose depth differs
    from that of its first entry. There is at least one entry; a single one may exceed the limit.
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
