"""Say which nodes of a rank that never finishes wait, and what for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from collhub_astra_sim.workloads.machine_state import NEVER_ENDS
from hub_core.model import Diagnostic, JobCollective, NodeKind, Workload

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.layout import Layout
    from collhub_astra_sim.workloads.machine_state import Machine


def waiting_ranks(workload: Workload, layout: Layout, machine: Machine) -> tuple[Diagnostic, ...]:
    """One finding for every node in progress at the end, by rank; else for the first free one."""
    return tuple(
        finding
        for rank in np.flatnonzero(machine.rank["finish"] < 0).tolist()
        for finding in _of_rank(rank, workload, layout, machine)
    )


def _of_rank(
    rank: int, workload: Workload, layout: Layout, machine: Machine
) -> Iterator[Diagnostic]:
    first, end = workload.nodes.rank_indptr[rank : rank + 2].tolist()
    nodes = machine.node[first:end]
    rows = layout.order[first:end]
    ongoing = np.flatnonzero((nodes["start"] >= 0) & (nodes["end"] < 0)).tolist()
    for place in ongoing:
        reason = _reason(int(rows[place]), workload, layout, machine)
        yield _finding("unfinished-node", reason, int(rows[place]), workload)
    free = np.flatnonzero((nodes["start"] < 0) & (nodes["unmet"] == 0)).tolist()
    if ongoing and free:
        message = f"waits for the slot of {_name(int(rows[ongoing[0]]), workload)}"
        yield _finding("slot-occupied", message, int(rows[free[0]]), workload)
    elif free:
        message = "is freed by a node that takes no time, and nothing else of its rank ends"
        yield _finding("never-issued", message, int(rows[free[0]]), workload)


def _finding(code: str, reason: str, row: int, workload: Workload) -> Diagnostic:
    message = f"{_name(row, workload)} {reason}; the rank never finishes"
    return Diagnostic(code, message, location=workload.nodes.location(row))


def _name(row: int, workload: Workload) -> str:
    nodes = workload.nodes
    kind = NodeKind(int(nodes.kind[row])).name
    return f"node {int(nodes.identity[row])} ({kind})"


def _reason(row: int, workload: Workload, layout: Layout, machine: Machine) -> str:
    """Why a node in progress does not end."""
    nodes = workload.nodes
    kind = NodeKind(int(nodes.kind[row]))
    if kind is NodeKind.RECV:
        return f"waits for a message of rank {int(nodes.peer[row])} that is never sent"
    if kind is NodeKind.SEND:
        return f"waits for rank {int(nodes.peer[row])}"
    if layout.work.action[row] == NEVER_ENDS:
        return "is of a kind that ASTRA-sim never ends"
    if kind is NodeKind.COLLECTIVE:
        return _unfinished_collective(row, workload, layout, machine)
    return "never ends"


def _unfinished_collective(row: int, workload: Workload, layout: Layout, machine: Machine) -> str:
    """Members that have no collective of this kind and size in progress, or of this group."""
    nodes = workload.nodes
    group = int(nodes.group[row])
    members = workload.members(group)
    if len(members) == 1:
        return "has a group of one member, which ASTRA-sim never ends"
    started = np.empty(len(nodes), np.int64)
    started[layout.order] = machine.node["start"]
    ended = np.empty(len(nodes), np.int64)
    ended[layout.order] = machine.node["end"]
    alike = (
        (started >= 0)
        & (ended < 0)
        & (nodes.group == group)
        & (nodes.collective == nodes.collective[row])
        & (nodes.bytes == nodes.bytes[row])
    )
    missing = sorted(set(members) - set(nodes.rank[alike].tolist()))
    name = JobCollective(int(nodes.collective[row])).name.lower().replace("_", "-")
    what = f"is an {name} of {int(nodes.bytes[row])} bytes that never ends"
    if not missing:
        return f"{what}, though all members have begun it: orders, groups or algorithms differ"
    return f"{what}: not begun by rank {', '.join(map(str, missing[:8]))}"
