"""Bridge markers: nodes that take no time, and that ASTRA-sim does not finish (type INVALID)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collhub_job_traces.rebuilding import Edges, columns_of, rebuilt
from hub_core.columns import BoolArray, Int64Array, csr, distinct, expanded_ranges, positions_in
from hub_core.model import NodeKind, Workload


class Bridged(NamedTuple):
    """A job without markers; `kept`: the rows of its nodes in the original job, ascending."""

    workload: Workload
    kept: Int64Array


def bridge_markers(workload: Workload) -> Bridged:
    """Leave out all markers and pass the dependencies on a marker to the parents of the marker.

    A dependency through a marker becomes a control dependency. Without markers the job is returned
    unchanged.
    """
    nodes = workload.nodes
    is_marker = nodes.is_kind(NodeKind.MARKER)
    kept = np.flatnonzero(~is_marker)
    if len(kept) == len(nodes):
        return Bridged(workload, kept)
    data, control = nodes.data_edges, nodes.control_edges
    bridges = _bridges(data, control, is_marker)
    place = positions_in(kept, len(nodes))
    changed = np.zeros(len(nodes), np.bool_)
    changed[bridges[1]] = True
    for parents, children in (data, control):
        changed[children[is_marker[parents]]] = True
    columns = {name: column[kept] for name, column in columns_of(nodes).items()}
    direct = _without(control, is_marker)
    control = np.concatenate([direct[0], bridges[0]]), np.concatenate([direct[1], bridges[1]])
    data = _without(data, is_marker)
    data = place[data[0]], place[data[1]]
    control = place[control[0]], place[control[1]]
    return Bridged(rebuilt(workload, columns, data, control, changed[kept]), kept)


def _without(edges: Edges, is_marker: BoolArray) -> Edges:
    """The edges that touch no marker."""
    keeps = ~is_marker[edges[0]] & ~is_marker[edges[1]]
    return edges[0][keeps], edges[1][keeps]


def _bridges(data: Edges, control: Edges, is_marker: BoolArray) -> Edges:
    """Pairs of other nodes that a chain of markers joins, each once.

    Cost: these pairs times the length of the longest chain.
    """
    count = len(is_marker)
    parents, children = (np.concatenate(pair) for pair in zip(data, control, strict=True))
    indptr, before = csr(children, parents, count)
    asked = is_marker[parents] & ~is_marker[children]
    parents, children = parents[asked], children[asked]
    found: list[Int64Array] = [np.zeros(0, np.int64)]
    # A round a marker of the longest chain; a chain that is a cycle ends with no new pair.
    seen = np.zeros(0, np.int64)
    while len(parents):
        counts = indptr[parents + 1] - indptr[parents]
        children = np.repeat(children, counts)
        parents = before[expanded_ranges(indptr[parents], counts)]
        codes = np.setdiff1d(distinct(parents * count + children), seen)
        seen = np.union1d(seen, codes)
        parents, children = np.divmod(codes, count)
        is_end = ~is_marker[parents]
        found.append(codes[is_end])
        parents, children = parents[~is_end], children[~is_end]
    joined = distinct(np.concatenate(found))
    ends = np.divmod(joined, count)
    return ends[0], ends[1]
