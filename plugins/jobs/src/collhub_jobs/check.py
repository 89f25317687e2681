"""Check workloads: dependencies, messages, and the collectives of every group."""

from __future__ import annotations

import numpy as np
from collhub_job_traces import EXTENSION, collectives_in_order
from collhub_waits.workloads import find_deadlock

from hub_core import Diagnostic, Location, UsageError
from hub_core.columns import (
    Int64Array,
    distinct,
    labels,
    topological_levels,
)
from hub_core.model import JobCollective, NodeKind, Workload
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

MAX_LISTED = 8
"""Maximum number of findings of one kind that are listed."""


def run(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check dependencies, messages and collectives of a workload, in this order.

    Collectives are compared only without cyclic dependencies; at most one finding per group that
    has collectives is reported (`_check_group`), by ascending number of the group. Of more than 8
    findings of one kind, the first 8 are listed, and one more gives the number of the rest. A
    thorough check also executes the workload to find deadlocks, if there are no other findings. The
    report is `ok` only without findings. Raises `UsageError` if the request has no workload.
    """
    if request.workload is None:
        raise UsageError("the check needs a workload")
    findings = [*_find_cycles(request.workload), *_find_unmatched_messages(request.workload)]
    # With cyclic dependencies, collectives have no order to compare.
    if not any(finding.code == "cycle" for finding in findings):
        groups: list[Diagnostic] = []
        group_of = request.workload.nodes.group
        issued = collectives_in_order(request.workload.nodes)
        for group in distinct(group_of[issued]).tolist():
            groups += _check_group(request.workload, group, issued[group_of[issued] == group])
        findings += _limit_findings(request.workload, groups)
    # Unmatched messages leave dependencies between ranks unknown.
    if request.is_thorough and not findings:
        findings += _find_deadlocks(request.workload)
    return CheckReport(not findings, diagnostics=tuple(findings))


def _make_finding(
    workload: Workload, row: int, code: str, message: str, cure: str = ""
) -> Diagnostic:
    """Create an error about the node in `row`, located in its rank and the file of this rank.

    A job that is not read from traces has one file for all ranks, or none. The description of the
    node is prepended to the message. `cure`: advice, `""` for none.
    """
    file = _file(workload, int(workload.nodes.rank[row])) or workload.provenance.source_name
    text = f"{describe_node(workload, row)}: {message}"
    return Diagnostic(code, text, location=workload.nodes.location(row, file or None), cure=cure)


def describe_node(workload: Workload, row: int) -> str:
    """Describe a node for messages by id, operation and name, as `node 7 (all-reduce NAME)`.

    The operation is the name of the collective, for other nodes and for a collective of unknown
    kind that of the node's kind, such as `compute`; in lower case with hyphens. A missing name
    is left out.
    """
    nodes = workload.nodes
    kind = NodeKind(nodes.kind[row])
    collective = JobCollective(nodes.collective[row])
    action = kind.name if collective is JobCollective.UNKNOWN else collective.name
    name = workload.names[nodes.name[row]] if nodes.name[row] >= 0 else ""
    return f"node {nodes.identity[row]} ({action.lower().replace('_', '-')}{name and ' ' + name})"


def _limit_findings(workload: Workload, findings: list[Diagnostic]) -> list[Diagnostic]:
    """Return the findings of one kind; of more than `MAX_LISTED` (8), the first 8 and a summary.

    The summary gives the number of the remaining findings. It has the code of the first
    finding, and the location of the job's source without a rank.
    """
    if len(findings) <= MAX_LISTED:
        return findings
    more = f"{len(findings) - MAX_LISTED} more of this kind are not listed"
    location = Location(workload.provenance.source_name or None)
    return [*findings[:MAX_LISTED], Diagnostic(findings[0].code, more, location=location)]


def _find_cycles(workload: Workload) -> list[Diagnostic]:
    """Find nodes that wait for themselves or for such nodes; return one finding per affected rank.

    Data and control dependencies count alike. The finding (`cycle`) is at the lowest row of the
    rank that can never run; this node need not be on the cycle itself. Findings are ordered by row.
    Empty without a cycle. At most 8 findings are listed, and one more counts the others.
    """
    nodes = workload.nodes
    parents, children = nodes.edges()
    order = topological_levels(len(nodes), parents, children)
    if order.is_complete:
        return []
    stuck = np.flatnonzero(order.position < 0)
    # One node per rank suffices to locate the cycle.
    _, first = np.unique(nodes.rank[stuck], return_index=True)
    message = "it waits for itself, or for nodes that do"
    cure = "take away one of the dependencies"
    return _limit_findings(
        workload,
        [
            _make_finding(workload, int(row), "cycle", message, cure)
            for row in stuck[np.sort(first)]
        ],
    )


def _find_unmatched_messages(workload: Workload) -> list[Diagnostic]:
    """Return errors for sends and receives without a partner of the same ranks, tag and bytes.

    First come the messages whose peer is no other rank of the job (`peer`), by row. They are
    not matched. Then come the unmatched messages (`unmatched`), by rank, then by (source,
    destination, tag, bytes), then by row. If there are more sends than receives with equal
    source, destination, tag and bytes, the last of these sends are unmatched, as many as there
    are more; and vice versa.

    Each of the two kinds has at most 8 findings, and one more that counts the rest. Empty if
    all messages match.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
    peer, rank = nodes.peer[rows], nodes.rank[rows]
    is_wrong = (peer < 0) | (peer >= nodes.num_ranks) | (peer == rank)
    wrong = [
        _make_finding(workload, int(row), "peer", f"its peer {nodes.peer[row]} is no other rank")
        for row in rows[is_wrong]
    ]
    rows = rows[~is_wrong]
    is_send = nodes.kind[rows] == NodeKind.SEND
    rank_columns = [nodes.rank[rows], nodes.peer[rows]]
    pair = np.where(is_send, *rank_columns), np.where(is_send, *rank_columns[::-1])
    key = labels(*pair, nodes.tag[rows], nodes.bytes[rows])
    surplus = np.bincount(key, np.where(is_send, 1, -1)).astype(np.int64)
    lonely = []
    # Of equal messages, the last ones count as unmatched.
    for label in np.flatnonzero(surplus):
        side = rows[(key == label) & (is_send == (surplus[label] > 0))]
        for row in side[-abs(int(surplus[label])) :].tolist():
            size = f"{nodes.bytes[row]} bytes with tag {nodes.tag[row]}"
            verb = "receives" if surplus[label] > 0 else "sends"
            message = f"rank {nodes.peer[row]} {verb} no such message: {size}"
            lonely.append(_make_finding(workload, row, "unmatched", message))
    by_rank = sorted(lonely, key=lambda finding: finding.location.rank or 0)
    return _limit_findings(workload, wrong) + _limit_findings(workload, by_rank)


def _find_deadlocks(workload: Workload) -> list[Diagnostic]:
    """Execute the workload, and report ranks that wait for each other forever.

    The result has at most one finding (`deadlock`), and is [] without a deadlock. The finding
    is located at the node in which the first of these ranks waits, and its message names all of
    them.
    """
    blocked = find_deadlock(workload)
    if not blocked:
        return []
    waits = ", ".join(
        f"rank {wait.rank}: {describe_node(workload, wait.waits_in)}"
        f" before {describe_node(workload, wait.awaited)}"
        for wait in blocked
    )
    message = f"ranks wait for one another for ever: {waits}"
    cure = "issue collectives and messages in the same order on all ranks that share them"
    return [_make_finding(workload, blocked[0].waits_in, "deadlock", message, cure)]


def _check_group(workload: Workload, group: int, rows: Int64Array) -> list[Diagnostic]:
    """Check the collectives of a group; return a list with one error, or an empty list.

    `group`: index of the group, -1 for all ranks of the job. `rows`: its collectives by rank,
    then in issue order; at least one. The first check that fails gives the error:

    - `group`: a call by a rank outside of the group, at the first such row
    - `group`: a group of a single rank (except the group of all ranks), in which simulators
      would hang, at the first row
    - `collectives-differ`: each member, in the order of the group, is compared with the member
      at position 0 (`_find_difference`). Kind, bytes, counts and the number of collectives must
      be equal; roots are not compared. The first difference of the first different member is
      reported.
    """
    nodes, members = workload.nodes, workload.members(group)
    name = f"process group {workload.groups[group].name!r}" if group >= 0 else "the job"
    strangers = rows[~np.isin(nodes.rank[rows], members)]
    if len(strangers):
        row = int(strangers[0])
        message = f"rank {nodes.rank[row]} is no member of {name}"
        return [_make_finding(workload, row, "group", message)]
    if group >= 0 and len(members) == 1:
        message = f"{name} has one member: simulators wait for others for ever"
        return [_make_finding(workload, int(rows[0]), "group", message)]
    first = rows[nodes.rank[rows] == members[0]]
    for member in members[1:]:
        second = rows[nodes.rank[rows] == member]
        difference = _find_difference(workload, first, second, (members[0], member), name)
        if difference:
            # Later differences follow from the first one.
            return [difference]
    return []


def _find_difference(
    workload: Workload, first: Int64Array, second: Int64Array, ranks: tuple[int, int], name: str
) -> Diagnostic | None:
    """Return a finding for the first collective that differs between two ranks; None without one.

    `first`, `second`: rows of the group's collectives on `ranks[0]` and `ranks[1]`, in issue
    order; `name`: of the group. Kind, bytes and counts are compared, roots are not. The finding
    (`collectives-differ`, an error) is located on the second rank; for a collective that is
    missing at the end, on the rank that has it. Positions in its text count from 1.
    """
    nodes = workload.nodes
    shared = min(len(first), len(second))
    is_same = nodes.collective[first[:shared]] == nodes.collective[second[:shared]]
    is_same &= nodes.bytes[first[:shared]] == nodes.bytes[second[:shared]]
    is_same &= nodes.counts[first[:shared]] == nodes.counts[second[:shared]]
    at = int(np.argmin(is_same)) if not is_same.all() else shared
    if at == len(first) == len(second):
        return None
    cure = "all ranks of a group issue the same collectives in the same order"
    if at == shared:
        longer, lacks = (first, ranks[1]) if len(first) > len(second) else (second, ranks[0])
        row = int(longer[at])
        message = f"collective {at + 1} of {name} is missing on rank {lacks}"
        return _make_finding(workload, row, "collectives-differ", message, cure)
    row, first_row = int(second[at]), int(first[at])
    second_bytes, first_bytes = int(nodes.bytes[row]), int(nodes.bytes[first_row])
    is_of_counts = nodes.counts[row] != nodes.counts[first_row]
    # Not every workload comes from files.
    file = _file(workload, ranks[0])
    origin = f" ({file})" if file else ""
    message = (
        f"collective {at + 1} of {name} has {second_bytes} bytes, "
        f"on rank {ranks[0]}{origin} "
        f"it is {describe_node(workload, first_row)} of {first_bytes} bytes"
        f"{' with other counts' if is_of_counts else ''}"
    )
    return _make_finding(workload, row, "collectives-differ", message, cure)


def _file(workload: Workload, rank: int) -> str:
    """Return the name of the trace file with a rank: `SOURCE.<rank>.et`.

    It is the name of the source itself if that has the suffix `.et` (a single file), and "" if
    the job was not read from traces or has no source name. Whether the file exists is not
    checked.
    """
    name = workload.provenance.source_name
    # Only readers of traces store the metadata records.
    if not name or EXTENSION not in workload.extensions:
        return ""
    return name if name.endswith(".et") else f"{name}.{rank}.et"
