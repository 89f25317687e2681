"""Cut every collective into several, which do not wait for one another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_job_traces.rebuilding import Edges, columns_of, rebuilt

from collhub_jobs.passes.options import SplitOptions
from hub_core.columns import Int64Array, counted_positions, expanded_ranges, first_positions
from hub_core.model import NodeColumns, NodeKind, Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: SplitOptions) -> tuple[Workload, PassReport]:
    """Cut the bytes in pieces that differ by one at most; those of fewer bytes stay whole.

    The first piece keeps the id, the others get new ones above all others, in the order of their
    collectives: on every rank the pieces of a group have one order. Collectives that name an
    algorithm, which was made for their size, stay whole, too.
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
    columns["identity"] = _identities(nodes, source, index)
    first = first_positions(copies)
    data, control = (
        _spread(edges, copies, first) for edges in (nodes.data_edges, nodes.control_edges)
    )
    waits_for_cut = np.zeros(len(nodes), np.bool_)
    for parents, children in (nodes.data_edges, nodes.control_edges):
        waits_for_cut[children[is_cut[parents]]] = True
    changed = cut | waits_for_cut[source]
    result = rebuilt(workload, columns, data, control, changed)
    count = int(is_cut.sum())
    changes = (f"{count} collectives are cut into {pieces} pieces each",) if count else ()
    return result, PassReport(changes)


def _identities(
    nodes: NodeColumns, source: Int64Array, index: Int64Array
) -> npt.NDArray[np.uint64]:
    """Ids of the pieces: later ones stand above all ids of their rank, by id and piece."""
    identity = nodes.identity[source].copy()
    rows = np.flatnonzero(index)
    rows = rows[np.lexsort((index[rows], identity[rows], nodes.rank[source[rows]]))]
    ranks = nodes.rank[source[rows]]
    highest = np.maximum.reduceat(np.append(nodes.identity, np.uint64(0)), nodes.rank_indptr[:-1])
    # Higher than all others: a slot that others want is theirs first.
    number = counted_positions(np.bincount(ranks, minlength=nodes.num_ranks))
    identity[rows] = highest[ranks] + np.uint64(1) + number.astype(np.uint64)
    return identity


def _spread(edges: Edges, copies: Int64Array, first: Int64Array) -> Edges:
    """Dependencies of every piece, on every piece."""
    parents, children = edges
    counts = copies[children]
    rows = expanded_ranges(first[children], counts)
    parents = np.repeat(parents, counts)
    # Every piece of a child now waits for every piece of its parent.
    counts = copies[parents]
    return expanded_ranges(first[parents], counts), np.repeat(rows, counts)
