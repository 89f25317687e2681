"""Passes over jobs: drop markers, fuse collectives, scale computations, split collectives.

Fusing follows data-parallel frameworks. Source: Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training" (VLDB 2020), section 3.2.3: buckets of 25 MiB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_job_traces import bridge_markers
from collhub_job_traces.rebuilding import Edges, columns_of, rebuilt

from collhub_jobs.plugin import FuseOptions, ScaleOptions, SplitOptions
from hub_core import UsageError
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    distinct,
    expanded_ranges,
    first_positions,
    positions_in,
    topological_levels,
)
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload, parse_ranks
from hub_core.plugin_api import NoOptions, PassReport


def drop_markers(workload: Workload, options: NoOptions) -> tuple[Workload, PassReport]:
    """Drop all markers; a dependency through a marker becomes a control dependency."""
    bridged, kept_rows = bridge_markers(workload)
    count = len(workload.nodes) - len(kept_rows)
    return bridged, PassReport((f"{count} markers are left out",) if count else ())


def fuse_collectives(workload: Workload, options: FuseOptions) -> tuple[Workload, PassReport]:
    """Fill buckets with consecutive all-reduces of a group until they would exceed the size.

    A bucket replaces its last all-reduce, has the dependencies of all of its all-reduces and the
    sum of their bytes. An all-reduce is never fused with one that it waits for. Groups whose ranks
    would have different buckets are unchanged.
    """
    nodes = workload.nodes
    target = _plan_buckets(workload, options.size)
    kept_rows = np.flatnonzero(target == np.arange(len(nodes)))
    position_of_row = positions_in(kept_rows, len(nodes))
    columns = columns_of(nodes)
    fused = target != np.arange(len(nodes))
    np.add.at(columns["bytes"], target[fused], nodes.bytes[fused])
    changed = np.zeros(len(nodes), np.bool_)
    changed[target[fused]] = True
    edges = []
    for parents, children in (nodes.data_edges, nodes.control_edges):
        changed[children[fused[parents]]] = True
        pairs = np.stack([position_of_row[target[parents]], position_of_row[target[children]]])
        # Equal dependencies of a bucket are merged.
        both = _drop_duplicate_pairs(pairs)
        edges.append((both[0], both[1]))
    columns = {name: column[kept_rows] for name, column in columns.items()}
    result = rebuilt(workload, columns, edges[0], edges[1], changed[kept_rows])
    count = int(fused.sum())
    buckets = len(distinct(target[fused]))
    changes = (f"{count + buckets} all-reduces are fused into {buckets}",) if count else ()
    return result, PassReport(changes)


def _drop_duplicate_pairs(pairs: Int64Array) -> Int64Array:
    """Drop duplicate columns of a table, keeping the order."""
    order = np.lexsort(pairs[::-1])
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any(np.diff(pairs[:, order], axis=1) != 0, axis=0)
    return pairs[:, np.sort(order[is_new])]


def _plan_buckets(workload: Workload, size: int) -> Int64Array:
    """Return for every row the row of its bucket: itself if it is not fused."""
    nodes = workload.nodes
    target = np.arange(len(nodes))
    can_fuse = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm < 0)
    can_fuse &= (nodes.collective == JobCollective.ALL_REDUCE) & (nodes.bytes >= 0)
    rows = np.flatnonzero(can_fuse)
    depth = _count_depths(nodes, can_fuse)
    rows = rows[np.lexsort((nodes.identity[rows], nodes.rank[rows], nodes.group[rows]))]
    for group in distinct(nodes.group[rows]).tolist():
        members = rows[nodes.group[rows] == group]
        by_rank = [members[nodes.rank[members] == rank] for rank in workload.members(group)]
        plans = [_buckets(nodes.bytes[rank_rows], depth[rank_rows], size) for rank_rows in by_rank]
        if any(plan != plans[0] for plan in plans):
            continue
        for rank_rows in by_rank:
            for first, stop in plans[0]:
                target[rank_rows[first:stop]] = rank_rows[stop - 1]
    return target


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


def _buckets(sizes: Int64Array, depths: Int64Array, limit: int) -> list[tuple[int, int]]:
    """Return (first, stop) of the buckets with at least two entries, in order."""
    buckets, first, filled = [], 0, 0
    values = zip(sizes.tolist(), depths.tolist(), strict=True)
    for index, (size, depth) in enumerate(values):
        if index and (filled + size > limit or depth != depths[first]):
            buckets.append((first, index))
            first, filled = index, 0
        filled += size
    buckets.append((first, len(sizes)))
    return [(begin, stop) for begin, stop in buckets if stop - begin > 1]


def scale_compute(workload: Workload, options: ScaleOptions) -> tuple[Workload, PassReport]:
    """Scale durations (rounded to ns), operations and bytes of computations.

    All three are scaled, so that roofline times scale like recorded times. Raises `UsageError` for
    ranks outside the job.
    """
    nodes = workload.nodes
    chosen = nodes.is_kind(NodeKind.COMPUTE)
    if options.ranks is not None:
        ranks = parse_ranks(options.ranks)
        if max(ranks) >= workload.num_ranks:
            message = f"rank {max(ranks)} is not there: the job has {workload.num_ranks}"
            raise UsageError(message, cure="change -O ranks", code="rank-range")
        chosen &= np.isin(nodes.rank, ranks)
    columns = columns_of(nodes)
    for name in ("duration_ns", "operations", "bytes"):
        column = getattr(nodes, name).copy()
        # Unknown values (-1) and zeros are unchanged.
        rows = chosen & (column > 0)
        scaled = np.rint(column[rows].astype(np.float64) * options.factor)
        # A duration of 0 would count as unknown.
        column[rows] = np.maximum(scaled, 1).astype(np.int64)
        columns[name] = column
    result = rebuilt(workload, columns, nodes.data_edges, nodes.control_edges, chosen)
    count = int(chosen.sum())
    message = f"{count} computations take {options.factor:g} times as long"
    return result, PassReport((message,) if count else ())


def split_collectives(workload: Workload, options: SplitOptions) -> tuple[Workload, PassReport]:
    """Split collectives into pieces whose bytes differ by at most 1.

    The first piece keeps the id; further pieces get new ids above all others, in the order of their
    collectives, so that the pieces of a group have the same order on every rank. Collectives with
    fewer bytes than pieces, and collectives with an algorithm for their size, are unchanged.
    """
    nodes, pieces = workload.nodes, options.pieces
    is_cut = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.bytes >= pieces) & (nodes.algorithm < 0)
    copies = np.where(is_cut, pieces, 1)
    source = np.repeat(np.arange(len(nodes)), copies)
    index = counted_positions(copies)
    columns = {name: column[source] for name, column in columns_of(nodes).items()}
    size = nodes.bytes[source]
    cut = is_cut[source]
    part = size * (index + 1) // pieces - size * index // pieces
    columns["bytes"] = np.where(cut, part, size)
    columns["identity"] = _number_pieces(nodes, source, index)
    first = first_positions(copies)
    data, control = (
        _multiply_edges(edges, copies, first) for edges in (nodes.data_edges, nodes.control_edges)
    )
    waits_for_cut = np.zeros(len(nodes), np.bool_)
    for parents, children in (nodes.data_edges, nodes.control_edges):
        waits_for_cut[children[is_cut[parents]]] = True
    changed = cut | waits_for_cut[source]
    result = rebuilt(workload, columns, data, control, changed)
    count = int(is_cut.sum())
    changes = (f"{count} collectives are cut into {pieces} pieces each",) if count else ()
    return result, PassReport(changes)


def _number_pieces(
    nodes: NodeColumns, source: Int64Array, index: Int64Array
) -> npt.NDArray[np.uint64]:
    """Number the pieces: later pieces get ids above all ids of their rank, by id and piece."""
    identity = nodes.identity[source].copy()
    rows = np.flatnonzero(index)
    rows = rows[np.lexsort((index[rows], identity[rows], nodes.rank[source[rows]]))]
    ranks = nodes.rank[source[rows]]
    highest = np.maximum.reduceat(np.append(nodes.identity, np.uint64(0)), nodes.rank_indptr[:-1])
    # The smallest id takes a slot first: later pieces must not delay other nodes.
    number = counted_positions(np.bincount(ranks, minlength=nodes.num_ranks))
    identity[rows] = highest[ranks] + np.uint64(1) + number.astype(np.uint64)
    return identity


def _multiply_edges(edges: Edges, copies: Int64Array, first: Int64Array) -> Edges:
    """Copy the dependencies of nodes to all of their pieces."""
    parents, children = edges
    counts = copies[children]
    rows = expanded_ranges(first[children], counts)
    parents = np.repeat(parents, counts)
    # Every piece of a child waits for every piece of its parent.
    counts = copies[parents]
    return expanded_ranges(first[parents], counts), np.repeat(rows, counts)
