"""The check of workloads: dependencies, messages, and the collectives of every group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_job_traces import EXTENSION, collectives_in_order

from hub_core import Diagnostic, Location, UsageError
from hub_core.columns import (
    BoolArray,
    Int64Array,
    distinct,
    labels,
    ordinals,
    topological_levels,
)
from hub_core.model import JobCollective, NodeKind, Workload
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

MOST = 8
"""How many findings of one kind are told in words."""


def run(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Judge a workload; every finding is an error."""
    if request.workload is None:
        raise UsageError("the check needs a workload")
    found = [*_cycles(request.workload), *_messages(request.workload)]
    # What waits for itself is in no order in which collectives could be compared.
    if not any(finding.code == "cycle" for finding in found):
        found += _collectives(request.workload)
    # Without partners, dependencies between ranks are unknown.
    if request.is_thorough and not found:
        found += _deadlocks(request.workload)
    return CheckReport(not found, diagnostics=tuple(found))


def _finding(workload: Workload, row: int, code: str, message: str, cure: str = "") -> Diagnostic:
    nodes, file = workload.nodes, workload.provenance.source_name or None
    text = f"{said(workload, row)}: {message}"
    return Diagnostic(code, text, location=nodes.location(row, file), cure=cure)


def said(workload: Workload, row: int) -> str:
    """How messages name a node: by its id, and what it does."""
    nodes = workload.nodes
    kind = NodeKind(nodes.kind[row])
    what = JobCollective(nodes.collective[row]).name if nodes.collective[row] >= 0 else kind.name
    name = workload.names[nodes.name[row]] if nodes.name[row] >= 0 else ""
    return f"node {nodes.identity[row]} ({what.lower().replace('_', '-')}{name and ' ' + name})"


def _capped(found: list[Diagnostic]) -> list[Diagnostic]:
    """The first few of one kind, and how many more there are."""
    if len(found) <= MOST:
        return found
    last = found[MOST - 1]
    more = f"{len(found) - MOST} more of this kind are not listed"
    return [*found[:MOST], Diagnostic(last.code, more, location=Location(last.location.file))]


def _cycles(workload: Workload) -> list[Diagnostic]:
    """A node of every rank that waits for itself."""
    nodes = workload.nodes
    parents, children = nodes.edges()
    order = topological_levels(len(nodes), parents, children)
    if order.is_complete:
        return []
    stuck = np.flatnonzero(order.position < 0)
    # One of each rank is enough to find the cycle.
    _, first = np.unique(nodes.rank[stuck], return_index=True)
    message = "it waits for itself, or for nodes that do"
    cure = "take away one of the dependencies"
    return _capped(
        [_finding(workload, int(row), "cycle", message, cure) for row in stuck[np.sort(first)]]
    )


def _messages(workload: Workload) -> list[Diagnostic]:
    """Messages whose other side is missing: pairs have equal ranks, tag and bytes."""
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
    peer, rank = nodes.peer[rows], nodes.rank[rows]
    is_wrong = (peer < 0) | (peer >= nodes.num_ranks) | (peer == rank)
    wrong = [
        _finding(workload, int(row), "peer", f"its peer {nodes.peer[row]} is no other rank")
        for row in rows[is_wrong]
    ]
    rows = rows[~is_wrong]
    is_send = nodes.kind[rows] == NodeKind.SEND
    ends = [nodes.rank[rows], nodes.peer[rows]]
    pair = np.where(is_send, *ends), np.where(is_send, *ends[::-1])
    key = labels(*pair, nodes.tag[rows], nodes.bytes[rows])
    surplus = np.bincount(key, np.where(is_send, 1, -1)).astype(np.int64)
    lonely = []
    # Of the surplus of one key, the last ones are those without partner.
    for one in np.flatnonzero(surplus):
        side = rows[(key == one) & (is_send == (surplus[one] > 0))]
        for row in side[-abs(int(surplus[one])) :].tolist():
            size = f"{nodes.bytes[row]} bytes with tag {nodes.tag[row]}"
            other = "receives" if surplus[one] > 0 else "sends"
            message = f"rank {nodes.peer[row]} {other} no such message: {size}"
            lonely.append(_finding(workload, row, "unmatched", message))
    return _capped(wrong) + _capped(sorted(lonely, key=lambda found: found.location.rank or 0))


def _deadlocks(workload: Workload) -> list[Diagnostic]:
    """A cycle of dependencies through several ranks, such as two groups in opposite orders.

    All calls of a collective end together, and a receive ends after its send begins: in the graph
    in which the calls of a collective are one vertex, a cycle never ends on any network.
    """
    nodes = workload.nodes
    vertex = _vertices(workload)
    parents, children = nodes.edges()
    sends, receives = _certain_messages(workload)
    edges = np.concatenate([parents, sends]), np.concatenate([children, receives])
    order = topological_levels(len(nodes), vertex[edges[0]], vertex[edges[1]])
    stuck = order.position[vertex] < 0
    if not stuck.any():
        return []
    path = _cycle_of_rows(vertex, edges, stuck)
    first = path[0]
    waits = ", ".join(
        f"rank {nodes.rank[parent]}: {said(workload, parent)} before {said(workload, child)}"
        for parent, child in zip(path[::2], path[1::2], strict=True)
    )
    message = f"ranks wait for one another for ever: {waits}"
    cure = "issue collectives and messages in the same order on all ranks that share them"
    return [_finding(workload, first, "deadlock", message, cure)]


def _vertices(workload: Workload) -> Int64Array:
    """The vertex of every node: its row, or that of the first call of its collective."""
    nodes = workload.nodes
    vertex = np.arange(len(nodes))
    issued = collectives_in_order(nodes)
    if len(issued):
        groups = nodes.group[issued].astype(np.int64)
        turn = ordinals((groups + 1) * nodes.num_ranks + nodes.rank[issued])
        call = labels(groups + 1, turn)
        first = np.full(int(call.max()) + 1, len(nodes))
        np.minimum.at(first, call, issued)
        vertex[issued] = first[call]
    return vertex


def _certain_messages(workload: Workload) -> tuple[Int64Array, Int64Array]:
    """(send, receive) rows of the messages of which no other has the same ranks, tag and bytes."""
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
    if not len(rows):
        return rows, rows
    is_send = nodes.kind[rows] == NodeKind.SEND
    source = np.where(is_send, nodes.rank[rows], nodes.peer[rows])
    destination = np.where(is_send, nodes.peer[rows], nodes.rank[rows])
    key = labels(source, destination, nodes.tag[rows], nodes.bytes[rows])
    is_single = np.bincount(key)[key] == 2
    # Both sides in the order of their keys, each of which stands once on either side.
    sends, receives = np.flatnonzero(is_single & is_send), np.flatnonzero(is_single & ~is_send)
    return rows[sends[np.argsort(key[sends])]], rows[receives[np.argsort(key[receives])]]


def _cycle_of_rows(
    vertex: Int64Array, edges: tuple[Int64Array, Int64Array], stuck: BoolArray
) -> list[int]:
    """The edges of one cycle, as rows: parent, child, parent, child, ...

    Every stuck vertex of a cycle, or after one, has a stuck parent, so that going from parent to
    parent reaches a cycle.
    """
    is_inner = stuck[edges[0]] & stuck[edges[1]]
    parents, children = edges[0][is_inner], edges[1][is_inner]
    # Of several edges into a vertex any one leads back to a cycle.
    edge_into = dict(zip(vertex[children].tolist(), range(len(children)), strict=True))
    walked: dict[int, int] = {}
    at = int(vertex[children[0]])
    while at not in walked:
        walked[at] = len(walked)
        at = int(vertex[parents[edge_into[at]]])
    cycle = [edge_into[one] for one in walked if walked[one] >= walked[at]]
    return [int(row) for edge in reversed(cycle) for row in (parents[edge], children[edge])]


def _collectives(workload: Workload) -> list[Diagnostic]:
    """Where the ranks of a group differ in the collectives that they issue, or their order."""
    nodes = workload.nodes
    found: list[Diagnostic] = []
    issued = collectives_in_order(nodes)
    for group in distinct(nodes.group[issued]).tolist():
        rows = issued[nodes.group[issued] == group]
        found += _group_findings(workload, group, rows)
    return _capped(found)


def _group_findings(workload: Workload, group: int, rows: Int64Array) -> list[Diagnostic]:
    nodes, members = workload.nodes, workload.members(group)
    name = f"process group {workload.groups[group].name!r}" if group >= 0 else "the job"
    strangers = rows[~np.isin(nodes.rank[rows], members)]
    if len(strangers):
        row = int(strangers[0])
        message = f"rank {nodes.rank[row]} is no member of {name}"
        return [_finding(workload, row, "group", message)]
    if group >= 0 and len(members) == 1:
        message = f"{name} has one member: simulators wait for others for ever"
        return [_finding(workload, int(rows[0]), "group", message)]
    first = rows[nodes.rank[rows] == members[0]]
    for member in members[1:]:
        other = rows[nodes.rank[rows] == member]
        difference = _difference(workload, first, other, (members[0], member), name)
        if difference:
            # One difference makes all that follow differ.
            return [difference]
    return []


def _difference(
    workload: Workload, one: Int64Array, other: Int64Array, ranks: tuple[int, int], name: str
) -> Diagnostic | None:
    """The first collective of two ranks that is not the same."""
    nodes = workload.nodes
    shared = min(len(one), len(other))
    is_same = nodes.collective[one[:shared]] == nodes.collective[other[:shared]]
    is_same &= nodes.bytes[one[:shared]] == nodes.bytes[other[:shared]]
    at = int(np.argmin(is_same)) if not is_same.all() else shared
    if at == len(one) == len(other):
        return None
    cure = "all ranks of a group issue the same collectives in the same order"
    if at == shared:
        longer, lacks = (one, ranks[1]) if len(one) > len(other) else (other, ranks[0])
        row = int(longer[at])
        message = f"collective {at + 1} of {name} is missing on rank {lacks}"
        return _finding(workload, row, "collectives-differ", message, cure)
    row, there = int(other[at]), int(one[at])
    bytes_here, bytes_there = int(nodes.bytes[row]), int(nodes.bytes[there])
    message = (
        f"collective {at + 1} of {name} has {bytes_here} bytes, "
        f"on rank {ranks[0]}{_in_file(workload, ranks[0])} "
        f"it is {said(workload, there)} of {bytes_there} bytes"
    )
    found = _finding(workload, row, "collectives-differ", message, cure)
    stated = _file(workload, ranks[1]) or found.location.file
    return replace(found, location=replace(found.location, file=stated))


def _file(workload: Workload, rank: int) -> str:
    """The trace of a rank, empty where the job is of no set of traces."""
    name = workload.provenance.source_name
    # Only readers of traces keep the records that stand before the nodes.
    return f"{name}.{rank}.et" if name and EXTENSION in workload.extensions else ""


def _in_file(workload: Workload, rank: int) -> str:
    # Not every workload comes from files.
    name = _file(workload, rank)
    return f" ({name})" if name else ""
