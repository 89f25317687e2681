"""Passes over jobs: drop markers, fuse collectives, scale computations, split collectives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_job_traces import bridge_markers
from collhub_job_traces.rebuilding import (
    BucketPlanner,
    Edges,
    columns_of,
    join_collectives,
    rebuilt,
)

from collhub_jobs.plugin import BucketOptions, ScaleOptions, SplitOptions
from hub_core import UsageError
from hub_core.columns import (
    Int64Array,
    counted_positions,
    expanded_ranges,
    first_positions,
)
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload, parse_ranks
from hub_core.plugin_api import NoOptions, PassReport


def drop_markers(workload: Workload, options: NoOptions) -> tuple[Workload, PassReport]:
    """Return the workload without markers, and a report with the number of removed markers.

    If a chain of markers leads from node a to node b, b gets a control dependency on a
    (`bridge_markers`). Without markers, the workload itself is returned, and the report is
    empty. `options` is not used.
    """
    bridged, kept_rows = bridge_markers(workload)
    count = len(workload.nodes) - len(kept_rows)
    return bridged, PassReport((f"{count} markers are left out",) if count else ())


def fuse_collectives(workload: Workload, options: BucketOptions) -> tuple[Workload, PassReport]:
    """Fuse consecutive all-reduces of a group to buckets of at most `options.size` bytes.

    A bucket replaces its last all-reduce, and has the dependencies of all its all-reduces and
    the sum of their bytes. The order is that of the ids. An all-reduce is never fused with one
    that it waits for (`BucketPlanner.plan`). Unchanged are all-reduces that are larger than the
    size, have a named algorithm or unknown bytes, and groups whose ranks would have different
    buckets. Returns the new workload, and a report of one line, or none if no all-reduces are
    fused.
    """
    nodes = workload.nodes
    can_fuse = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm < 0)
    can_fuse &= (nodes.collective == JobCollective.ALL_REDUCE) & (nodes.bytes >= 0)
    plan = BucketPlanner(workload, can_fuse).plan(options.size)
    fused = join_collectives(workload, plan)
    change = f"{fused.joined_count} all-reduces are fused into {fused.bucket_count}"
    return fused.workload, PassReport((change,) if fused.joined_count else ())


def scale_compute(workload: Workload, options: ScaleOptions) -> tuple[Workload, PassReport]:
    """Scale duration, operations and bytes of computations by a factor.

    Returns the new job and a report. Positive values become the product with `options.factor`,
    rounded to the nearest integer (halves to the even one), at least 1. Unknown values (-1) and
    zeros are unchanged. Only computations of the ranks in the text `options.ranks`, such as
    `0,2,4-7`, are selected; without it (None), those of all ranks. Selected computations lose
    their preserved records (`extra`).

    The report has one line with the number of selected computations and the factor, none if
    none are selected. Raises `UsageError` for ranks outside of the job (`rank-range`) and for a
    text that is no list of ranks (`invalid-ranks`).
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
    """Split each collective into p = `options.pieces` pieces; return the new job and a report.

    Unchanged are collectives with fewer than p bytes (also unknown bytes), with a named
    algorithm, or with counts. Piece i of b bytes has b (i + 1) // p - b i // p bytes: 7 bytes
    in 2 pieces give 3 and 4. Every piece has all dependencies of the collective, and a node
    that waits for the collective waits for all of its pieces. Pieces do not wait for each
    other.

    The first piece keeps the id. Further pieces get new ids above all others of the rank, or the
    smallest unused ones if those exceed 64 bits. They are in the order of the ids of their
    collectives, so that pieces have the same order on every rank. Pieces and nodes that wait for
    them lose their preserved records (`extra`). The report has one line with the number of split
    collectives, none if nothing is split.
    """
    nodes, pieces = workload.nodes, options.pieces
    is_cut = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.bytes >= pieces) & (nodes.algorithm < 0)
    is_cut &= nodes.counts < 0
    copies = np.where(is_cut, pieces, 1)
    source = np.repeat(np.arange(len(nodes)), copies)
    index = counted_positions(copies)
    columns = {name: column[source] for name, column in columns_of(nodes).items()}
    size = nodes.bytes[source]
    cut = is_cut[source]
    # Without products of the bytes, which may be near 2^62.
    whole, rest = np.divmod(size, pieces)
    part = whole + rest * (index + 1) // pieces - rest * index // pieces
    columns["bytes"] = np.where(cut, part, size)
    columns["identity"] = _number_pieces(nodes, source, index)
    first = first_positions(copies)
    waits_for_cut = np.zeros(len(nodes), np.bool_)
    edges: list[Edges] = []
    for parents, children in (nodes.data_edges, nodes.control_edges):
        waits_for_cut[children[is_cut[parents]]] = True
        # Every piece of a child waits for every piece of its parent.
        counts = copies[children]
        child_pieces = expanded_ranges(first[children], counts)
        parent_rows = np.repeat(parents, counts)
        counts = copies[parent_rows]
        parent_pieces = expanded_ranges(first[parent_rows], counts)
        edges.append((parent_pieces, np.repeat(child_pieces, counts)))
    changed = cut | waits_for_cut[source]
    result = rebuilt(workload, columns, edges[0], edges[1], changed)
    count = int(is_cut.sum())
    changes = (f"{count} collectives are cut into {pieces} pieces each",) if count else ()
    return result, PassReport(changes)


def _number_pieces(
    nodes: NodeColumns, source: Int64Array, index: Int64Array
) -> npt.NDArray[np.uint64]:
    """Return the ids of the pieces: uint64[pieces].

    `source`: node of every piece; `index`: number of the piece within its node, from 0. A piece
    with index 0 keeps the id of its node. All other pieces of a rank are numbered together, ordered
    by the id of their node, then by index. They get consecutive ids, starting with the highest id
    of the nodes of the rank plus 1. If the last of these ids would exceed 2^64 - 1, they get the
    smallest unused ids of the rank in ascending order. The arguments are not changed.
    """
    identity = nodes.identity[source].copy()
    rows = np.flatnonzero(index)
    rows = rows[np.lexsort((index[rows], identity[rows], nodes.rank[source[rows]]))]
    ranks = nodes.rank[source[rows]]
    highest = np.maximum.reduceat(np.append(nodes.identity, np.uint64(0)), nodes.rank_indptr[:-1])
    # The smallest id takes a slot first: later pieces must not delay other nodes.
    needed = np.bincount(ranks, minlength=nodes.num_ranks)
    number = counted_positions(needed)
    identity[rows] = highest[ranks] + np.uint64(1) + number.astype(np.uint64)
    for rank in np.flatnonzero(highest > np.uint64((1 << 64) - 1) - needed.astype(np.uint64)):
        used = nodes.identity[nodes.rank_indptr[rank] : nodes.rank_indptr[rank + 1]]
        candidates = np.arange(needed[rank] + len(used), dtype=np.uint64)
        identity[rows[ranks == rank]] = np.setdiff1d(candidates, used)[: needed[rank]]
    return identity
