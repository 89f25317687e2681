"""Report which nodes of a rank that never finishes wait, why, and how to fix the job."""

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
    """Why a node does not end, and the cure, empty where there is none."""

    text: str
    cure: str = ""


def waiting_ranks(workload: Workload, layout: Layout, machine: Machine) -> tuple[Diagnostic, ...]:
    """One finding for every node in progress at the end, by rank; else for the first free one."""
    job = _StoppedJob(workload, layout, machine)
    return tuple(
        finding
        for rank in np.flatnonzero(machine.rank["finish"] < 0).tolist()
        for finding in job.findings_of(rank)
    )


class _StoppedJob:
    """A job in which nothing happens any more; columns by row of the workload's nodes."""

    def __init__(self, workload: Workload, layout: Layout, machine: Machine) -> None:
        self._workload, self._layout = workload, layout
        self._start, self._end = self._by_row(machine, "start"), self._by_row(machine, "end")
        self._unmet = self._by_row(machine, "unmet")
        self._streams = self._by_row(machine, "streams")
        self._choice = self._by_row(machine, "choice")
        self._is_ongoing = (self._start >= 0) & (self._end < 0)

    def _by_row(self, machine: Machine, name: str) -> Int64Array:
        column = np.empty(len(self._workload.nodes), np.int64)
        column[self._layout.order] = machine.node[name]
        return column

    def findings_of(self, rank: int) -> Iterator[Diagnostic]:
        """The findings of a rank that never finishes."""
        own = self._layout.order[slice(*self._workload.nodes.rank_indptr[rank : rank + 2].tolist())]
        ongoing = own[self._is_ongoing[own]].tolist()
        for row in ongoing:
            yield self._finding("unfinished-node", self._reason(row), row)
        free = own[(self._start[own] < 0) & (self._unmet[own] == 0)].tolist()
        if ongoing and free:
            reason = _Reason(f"waits for the slot of {self._name(ongoing[0])}")
            yield self._finding("slot-occupied", reason, free[0])
        elif free:
            text = "is freed by a node that takes no time, and nothing else of its rank ends"
            yield self._finding("never-issued", _Reason(text), free[0])

    def _finding(self, code: str, reason: _Reason, row: int) -> Diagnostic:
        message = f"{self._name(row)} {reason.text}; the rank never finishes"
        place = self._workload.nodes.location(row)
        return Diagnostic(code, message, location=place, cure=reason.cure)

    def _name(self, row: int) -> str:
        nodes = self._workload.nodes
        return f"node {int(nodes.identity[row])} ({NodeKind(int(nodes.kind[row])).name})"

    def _named_collective(self, row: int) -> str:
        """`node 7 (all-reduce of process group '2')`; other nodes by their kind."""
        nodes = self._workload.nodes
        if nodes.kind[row] != NodeKind.COLLECTIVE:
            return self._name(row)
        kind = _kind_name(int(nodes.collective[row]))
        return f"node {int(nodes.identity[row])} ({kind} of {self._group_name(row)})"

    def _group_name(self, row: int) -> str:
        group = int(self._workload.nodes.group[row])
        return f"process group {self._workload.groups[group].name!r}" if group >= 0 else "all ranks"

    def _reason(self, row: int) -> _Reason:
        """Why a node in progress does not end."""
        nodes = self._workload.nodes
        kind = NodeKind(int(nodes.kind[row]))
        if kind is NodeKind.RECV:
            return _Reason(f"waits for a message of rank {int(nodes.peer[row])} that is never sent")
        if kind is NodeKind.SEND:
            return _Reason(f"waits for rank {int(nodes.peer[row])}")
        if self._layout.work.action[row] == NEVER_ENDS:
            return _Reason("is of a kind that ASTRA-sim never ends")
        return (
            self._collective_reason(row) if kind is NodeKind.COLLECTIVE else _Reason("never ends")
        )

    def _collective_reason(self, row: int) -> _Reason:
        """Which members have not begun a collective, or number its messages differently."""
        nodes = self._workload.nodes
        members = self._workload.members(int(nodes.group[row]))
        if len(members) == 1:
            return _Reason("has a group of one member, which ASTRA-sim never ends")
        same = self._is_ongoing & (nodes.group == nodes.group[row])
        same &= (nodes.collective == nodes.collective[row]) & (nodes.bytes == nodes.bytes[row])
        rows = np.flatnonzero(same)
        missing = sorted(set(members) - set(nodes.rank[rows].tolist()))
        kind = _kind_name(int(nodes.collective[row]))
        size = int(nodes.bytes[row])
        what = f"is an {kind} of {size} bytes of {self._group_name(row)} that never ends"
        if missing:
            return self._missing_members(what, missing)
        if nodes.group[row] < 0 and self._choice[row] >= 0:
            return self._uneven_numbers(what, rows)
        return _Reason(
            f"{what}, though all members have begun it: orders or algorithms differ", _ORDER_CURE
        )

    def _missing_members(self, what: str, missing: list[int]) -> _Reason:
        """The collective that the first of the missing members is in instead."""
        listed = ", ".join(map(str, missing[:_LISTED_RANKS]))
        text = f"{what}: not begun by rank {listed}"
        nodes, rank = self._workload.nodes, missing[0]
        own = np.arange(*nodes.rank_indptr[rank : rank + 2].tolist())
        other = own[self._is_ongoing[own] & (nodes.kind[own] == NodeKind.COLLECTIVE)]
        if not len(other):
            return _Reason(text)
        text += f"; rank {rank} waits in {self._named_collective(int(other[0]))}"
        return _Reason(text, _ORDER_CURE)

    def _uneven_numbers(self, what: str, rows: Int64Array) -> _Reason:
        """Members that ran other numbers of streams before a collective without a group.

        ASTRA-sim numbers the streams, and with them the messages, of such a collective by all
        streams of the rank so far, those of groups included.
        """
        nodes, ranks = self._workload.nodes, self._workload.num_ranks
        is_past = (self._end >= 0) & (self._choice != NO_CHOICE)
        counts = np.bincount(nodes.rank[is_past], self._streams[is_past], ranks).astype(np.int64)
        if len(distinct(counts[nodes.rank[rows]])) < 2:
            return _Reason(f"{what}, though all members have begun it", _ORDER_CURE)
        is_earlier = is_past & (nodes.group >= 0) & (counts[nodes.rank] > counts.min())
        earlier = np.flatnonzero(is_earlier if is_earlier.any() else is_past)
        least = np.flatnonzero(counts == counts.min()).tolist()
        most = np.flatnonzero(counts > counts.min()).tolist()
        text = (
            f"{what}: ranks {format_ranks(most)} have run more collectives before it, such as "
            f"{self._named_collective(int(earlier[0]))}, than ranks {format_ranks(least)}, so that "
            "ASTRA-sim numbers its messages differently"
        )
        return _Reason(text, self._group_of_all())

    def _group_of_all(self) -> str:
        """How collectives of all ranks get numbers of their own."""
        groups, count = self._workload.groups, self._workload.num_ranks
        name = next((one.name for one in groups if len(one.ranks) == count), None)
        if name is not None:
            return f"name the group of all ranks of groups.json in these nodes: pg_name {name!r}"
        taken = [int(one.name) for one in groups if one.name.isascii() and one.name.isdecimal()]
        name = str(max(taken, default=0) + 1)
        listed = f"[0, ..., {count - 1}]" if count > _LISTED_RANKS else str([*range(count)])
        return (
            f'add a group of all ranks to groups.json, "{name}": {listed}, and name it in these '
            f"nodes: pg_name {name!r}"
        )


def _kind_name(collective: int) -> str:
    return JobCollective(collective).name.lower().replace("_", "-")
