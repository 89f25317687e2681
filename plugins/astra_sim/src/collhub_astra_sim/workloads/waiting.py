"""Report the waiting nodes of ranks that never finish, the reasons, and how to fix the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collhub_astra_sim.workloads.machine_state import NEVER_ENDS, NO_CHOICE
from hub_core.columns import Int64Array, distinct
from hub_core.model import Diagnostic, JobCollective, NodeKind, Workload, format_ranks

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.layout import Layout
    from collhub_astra_sim.workloads.machine_state import Machine

_ORDER_CURE = "issue the collectives of these groups in the same order on all ranks"
_LISTED_RANKS = 8


class _Reason(NamedTuple):
    """Why a node does not finish, and the cure, empty if there is none."""

    text: str
    cure: str = ""


def report_waiting_ranks(
    workload: Workload, layout: Layout, machine: Machine
) -> tuple[Diagnostic, ...]:
    """Return the findings of all ranks that never finish, in rank order.

    One finding for every running node, and one for the first free node of the rank.
    """
    job = _StoppedJob(workload, layout, machine)
    return tuple(
        finding
        for rank in np.flatnonzero(machine.rank["finish"] < 0).tolist()
        for finding in job.findings_of(rank)
    )


class _StoppedJob:
    """A job whose event queue is empty; columns by row of the workload's nodes."""

    def __init__(self, workload: Workload, layout: Layout, machine: Machine) -> None:
        self._workload, self._layout = workload, layout
        self._start, self._end = (
            self._order_by_row(machine, "start"),
            self._order_by_row(machine, "end"),
        )
        self._unmet = self._order_by_row(machine, "unmet")
        self._streams = self._order_by_row(machine, "streams")
        self._choice = self._order_by_row(machine, "choice")
        self._is_ongoing = (self._start >= 0) & (self._end < 0)

    def _order_by_row(self, machine: Machine, name: str) -> Int64Array:
        """Return a column of the machine's nodes in the order of the workload."""
        column = np.empty(len(self._workload.nodes), np.int64)
        column[self._layout.order] = machine.node[name]
        return column

    def findings_of(self, rank: int) -> Iterator[Diagnostic]:
        """Yield the findings of a rank that never finishes.

        One per running node with its reason; if no further node can start, one for the first free
        node.
        """
        rows = self._layout.order[
            slice(*self._workload.nodes.rank_indptr[rank : rank + 2].tolist())
        ]
        ongoing = rows[self._is_ongoing[rows]].tolist()
        for row in ongoing:
            yield self._make_finding("unfinished-node", self._explain(row), row)
        free = rows[(self._start[rows] < 0) & (self._unmet[rows] == 0)].tolist()
        if ongoing and free:
            reason = _Reason(f"waits for the slot of {self._format_name(ongoing[0])}")
            yield self._make_finding("slot-occupied", reason, free[0])
        elif free:
            text = "depends on a node that takes no time, and no further node of its rank finishes"
            yield self._make_finding("never-issued", _Reason(text), free[0])

    def _make_finding(self, code: str, reason: _Reason, row: int) -> Diagnostic:
        """Build the finding about a node."""
        message = f"{self._format_name(row)} {reason.text}; the rank never finishes"
        location = self._workload.nodes.location(row)
        return Diagnostic(code, message, location=location, cure=reason.cure)

    def _format_name(self, row: int) -> str:
        """Return the name of a node: `node 7 (COMPUTE)`."""
        nodes = self._workload.nodes
        return f"node {int(nodes.identity[row])} ({NodeKind(int(nodes.kind[row])).name})"

    def _describe_collective(self, row: int) -> str:
        """Return `node 7 (all-reduce of process group '2')`; for other nodes their name."""
        nodes = self._workload.nodes
        if nodes.kind[row] != NodeKind.COLLECTIVE:
            return self._format_name(row)
        kind = _format_kind(int(nodes.collective[row]))
        return f"node {int(nodes.identity[row])} ({kind} of {self._format_group(row)})"

    def _format_group(self, row: int) -> str:
        """Return the name of the node's group, or `all ranks`."""
        group = int(self._workload.nodes.group[row])
        return f"process group {self._workload.groups[group].name!r}" if group >= 0 else "all ranks"

    def _explain(self, row: int) -> _Reason:
        """Return why a running node does not finish, by its kind."""
        nodes = self._workload.nodes
        kind = NodeKind(int(nodes.kind[row]))
        if kind is NodeKind.RECV:
            return _Reason(f"waits for a message of rank {int(nodes.peer[row])} that is never sent")
        if kind is NodeKind.SEND:
            return _Reason(f"waits for rank {int(nodes.peer[row])}")
        if self._layout.work.action[row] == NEVER_ENDS:
            return _Reason("is of a kind that ASTRA-sim never finishes")
        return (
            self._explain_collective(row)
            if kind is NodeKind.COLLECTIVE
            else _Reason("never finishes")
        )

    def _explain_collective(self, row: int) -> _Reason:
        """Return the members that have not begun a collective.

        Also those that number its messages differently.
        """
        nodes = self._workload.nodes
        members = self._workload.members(int(nodes.group[row]))
        if len(members) == 1:
            return _Reason("has a group of one member, which ASTRA-sim never finishes")
        is_same = self._is_ongoing & (nodes.group == nodes.group[row])
        is_same &= (nodes.collective == nodes.collective[row]) & (nodes.bytes == nodes.bytes[row])
        rows = np.flatnonzero(is_same)
        missing = sorted(set(members) - set(nodes.rank[rows].tolist()))
        kind = _format_kind(int(nodes.collective[row]))
        size = int(nodes.bytes[row])
        text = f"is an {kind} of {size} bytes of {self._format_group(row)} that never finishes"
        if missing:
            return self._describe_missing_members(text, missing)
        if nodes.group[row] < 0 and self._choice[row] >= 0:
            return self._describe_uneven_numbers(text, rows)
        return _Reason(
            f"{text}, though all members have begun it: orders or algorithms differ", _ORDER_CURE
        )

    def _describe_missing_members(self, prefix: str, missing: list[int]) -> _Reason:
        """Name the missing members and the collective in which the first of them waits instead."""
        listed = ", ".join(map(str, missing[:_LISTED_RANKS]))
        text = f"{prefix}: not begun by rank {listed}"
        nodes, rank = self._workload.nodes, missing[0]
        rows = np.arange(*nodes.rank_indptr[rank : rank + 2].tolist())
        collectives = rows[self._is_ongoing[rows] & (nodes.kind[rows] == NodeKind.COLLECTIVE)]
        if not len(collectives):
            return _Reason(text)
        text += f"; rank {rank} waits in {self._describe_collective(int(collectives[0]))}"
        return _Reason(text, _ORDER_CURE)

    def _describe_uneven_numbers(self, prefix: str, rows: Int64Array) -> _Reason:
        """Name the members that ran other numbers of streams before a collective without a group.

        ASTRA-sim numbers the streams, and with them the messages, of such a collective by all
        streams of the rank so far, including those of groups.
        """
        nodes, ranks = self._workload.nodes, self._workload.num_ranks
        is_past = (self._end >= 0) & (self._choice != NO_CHOICE)
        counts = np.bincount(nodes.rank[is_past], self._streams[is_past], ranks).astype(np.int64)
        if len(distinct(counts[nodes.rank[rows]])) < 2:
            return _Reason(f"{prefix}, though all members have begun it", _ORDER_CURE)
        is_earlier = is_past & (nodes.group >= 0) & (counts[nodes.rank] > counts.min())
        earlier = np.flatnonzero(is_earlier if is_earlier.any() else is_past)
        ranks_with_fewest = np.flatnonzero(counts == counts.min()).tolist()
        ranks_with_more = np.flatnonzero(counts > counts.min()).tolist()
        text = (
            f"{prefix}: ranks {format_ranks(ranks_with_more)} have run more collectives before it, "
            f"such as {self._describe_collective(int(earlier[0]))}, than ranks "
            f"{format_ranks(ranks_with_fewest)}, so that "
            "ASTRA-sim numbers its messages differently"
        )
        return _Reason(text, self._describe_cure())

    def _describe_cure(self) -> str:
        """Return the cure: how collectives of all ranks get a separate numbering."""
        groups, count = self._workload.groups, self._workload.num_ranks
        name = next((group.name for group in groups if len(group.ranks) == count), None)
        if name is not None:
            return f"name the group of all ranks of groups.json in these nodes: pg_name {name!r}"
        used_numbers = [
            int(group.name) for group in groups if group.name.isascii() and group.name.isdecimal()
        ]
        name = str(max(used_numbers, default=0) + 1)
        listed = f"[0, ..., {count - 1}]" if count > _LISTED_RANKS else str([*range(count)])
        return (
            f'add a group of all ranks to groups.json, "{name}": {listed}, and name it in these '
            f"nodes: pg_name {name!r}"
        )


def _format_kind(collective: int) -> str:
    """Return the name of a collective, such as all-reduce."""
    return JobCollective(collective).name.lower().replace("_", "-")
