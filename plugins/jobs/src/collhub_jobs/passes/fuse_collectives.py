"""Join small all-reduces of one group into buckets, as data-parallel frameworks do.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB
2020), section 3.2.3: gradients are reduced in buckets of 25 MiB.
"""

from __future__ import annotations

import numpy as np
from collhub_job_traces.rebuilding import columns_of, rebuilt

from collhub_jobs.passes.options import FuseOptions
from hub_core.columns import BoolArray, Int64Array, distinct, positions_in, topological_levels
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: FuseOptions) -> tuple[Workload, PassReport]:
    """Fill buckets with consecutive all-reduces of a group until they would exceed the size.

    A bucket stands where its last all-reduce stood, waits for what all of them wait for, and has
    the sum of their bytes. No all-reduce joins one that it waits for. Groups whose ranks would
    differ in their buckets stay as they are.
    """
    nodes = workload.nodes
    target = _targets(workload, options.size)
    kept = np.flatnonzero(target == np.arange(len(nodes)))
    place = positions_in(kept, len(nodes))
    columns = columns_of(nodes)
    fused = target != np.arange(len(nodes))
    np.add.at(columns["bytes"], target[fused], nodes.bytes[fused])
    changed = np.zeros(len(nodes), np.bool_)
    changed[target[fused]] = True
    edges = []
    for parents, children in (nodes.data_edges, nodes.control_edges):
        changed[children[fused[parents]]] = True
        pairs = np.stack([place[target[parents]], place[target[children]]])
        # Two of a bucket that wait for the same node wait for it once.
        both = _distinct_pairs(pairs)
        edges.append((both[0], both[1]))
    columns = {name: column[kept] for name, column in columns.items()}
    result = rebuilt(workload, columns, edges[0], edges[1], changed[kept])
    count = int(fused.sum())
    buckets = len(distinct(target[fused]))
    changes = (f"{count + buckets} all-reduces are fused into {buckets}",) if count else ()
    return result, PassReport(changes)


def _distinct_pairs(pairs: Int64Array) -> Int64Array:
    """Columns of a table, the first of equal ones each, in their order."""
    order = np.lexsort(pairs[::-1])
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any(np.diff(pairs[:, order], axis=1) != 0, axis=0)
    return pairs[:, np.sort(order[is_new])]


def _targets(workload: Workload, size: int) -> Int64Array:
    """For every row, the row into which it goes: itself where it is not fused."""
    nodes = workload.nodes
    target = np.arange(len(nodes))
    can_fuse = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm < 0)
    can_fuse &= (nodes.collective == JobCollective.ALL_REDUCE) & (nodes.bytes >= 0)
    rows = np.flatnonzero(can_fuse)
    depth = _depths(nodes, can_fuse)
    rows = rows[np.lexsort((nodes.identity[rows], nodes.rank[rows], nodes.group[rows]))]
    for group in distinct(nodes.group[rows]).tolist():
        members = rows[nodes.group[rows] == group]
        by_rank = [members[nodes.rank[members] == rank] for rank in workload.members(group)]
        plans = [_buckets(nodes.bytes[own], depth[own], size) for own in by_rank]
        if any(plan != plans[0] for plan in plans):
            continue
        for own in by_rank:
            for first, stop in plans[0]:
                target[own[first:stop]] = own[stop - 1]
    return target


def _depths(nodes: NodeColumns, counted: BoolArray) -> Int64Array:
    """The most counted nodes on a path to each node, itself included.

    Of two nodes on one path, the later has more: equal depths mean that neither waits for the
    other, and buckets of one depth each never wait for one another in a circle.
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


def _buckets(sizes: Int64Array, depths: Int64Array, limit: int) -> list[tuple[int, int]]:
    """(first, stop) of the buckets of two and more, in order."""
    found, first, filled = [], 0, 0
    values = zip(sizes.tolist(), depths.tolist(), strict=True)
    for index, (size, depth) in enumerate(values):
        if index and (filled + size > limit or depth != depths[first]):
            found.append((first, index))
            first, filled = index, 0
        filled += size
    found.append((first, len(sizes)))
    return [(begin, stop) for begin, stop in found if stop - begin > 1]
