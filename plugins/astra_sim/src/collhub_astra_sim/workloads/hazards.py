"""What ASTRA-sim hangs, aborts or goes wrong on in a workload, by the numbers of its hazards.

Measured with the public release of March 2026. H4 and H5 show in a simulation alone: ranks that
never finish, which `simulate_workload` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from collhub_columns import BoolArray, distinct

from collhub_astra_sim.workloads.system import NATIVE_TYPES, System
from hub_core import UsageError
from hub_core.model import Diagnostic, JobCollective, NodeKind, Severity, Workload
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

EXTENSION = "astra-sim"
"""Key of `Workload.extensions`: the texts of `system`, `network` and `memory`; `custom`: the prefix
of each of `Workload.algorithms`; `per_node`: prefixes by node."""
NO_TIME = "takes no time: what it frees waits for another node to end"
NO_TIME_CURE = "state a tensor size, or leave the node out"
# Tags of streams wrap above this group.
_LAST_GROUP = 499


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check of workloads: the hazards of one that was read from a folder for ASTRA-sim."""
    if request.workload is None:
        raise UsageError("the check needs a workload")
    stated = request.workload.extensions.get(EXTENSION)
    system = stated.get("system") if isinstance(stated, dict) else None
    if not isinstance(system, str):
        return CheckReport(True, is_applicable=False)
    file = request.workload.provenance.source_name or None
    found = [
        replace(one, location=replace(one.location, file=file))
        for one in hazards(request.workload, System.of_json(system))
    ]
    is_fatal = any(one.severity is Severity.ERROR for one in found)
    return CheckReport(not is_fatal, diagnostics=tuple(found))


def hazards(workload: Workload, system: System) -> tuple[Diagnostic, ...]:
    """The first node of each hazard, with how many there are."""
    found = []
    for code, is_there, message, severity, cure in _checks(workload, system):
        rows = np.flatnonzero(is_there)
        if len(rows):
            row = int(rows[0])
            name = f"node {int(workload.nodes.identity[row])}"
            more = f" ({len(rows)} nodes)" if len(rows) > 1 else ""
            place = workload.nodes.location(row)
            found.append(Diagnostic(code, f"{name} {message}{more}", severity, place, cure))
    return tuple(found)


_Check = tuple[str, BoolArray, str, Severity, str]


def _checks(workload: Workload, system: System) -> Iterator[_Check]:
    nodes = workload.nodes
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    is_memory = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE)
    is_marker = nodes.is_kind(NodeKind.MARKER)
    is_host_compute = nodes.is_kind(NodeKind.COMPUTE) & nodes.on_host
    yield (
        "h1", is_host_compute | is_memory | is_marker,
        "breaks the statistics at the rank's end: ASTRA-sim aborts if a message ends last",
        Severity.WARNING, "let a COMPUTE node come last",
    )  # fmt: skip
    yield (
        "h2", is_marker, "is a marker: written as METADATA it aborts ASTRA-sim",
        Severity.WARNING, "leave it out",
    )  # fmt: skip
    is_empty = is_empty_work(workload, system)
    yield ("h3", is_empty | is_marker, NO_TIME, Severity.WARNING, NO_TIME_CURE)
    known = [*NATIVE_TYPES, JobCollective.BROADCAST]
    is_unknown = is_collective & ~np.isin(nodes.collective, known)
    yield (
        "h6", is_unknown | (is_collective & nodes.on_host),
        "is a collective that ASTRA-sim never ends", Severity.ERROR,
        "choose another kind, and let it run on the device",
    )  # fmt: skip
    is_gather = is_collective & (nodes.collective == JobCollective.ALL_GATHER)
    yield (
        "h7", is_gather & (nodes.bytes < system.splits),
        f"gathers fewer bytes than {system.splits} splits: ASTRA-sim never stops",
        Severity.ERROR, "use fewer splits",
    )  # fmt: skip
    yield (
        "h8", is_collective & _has_other_group(workload, system),
        "is of a rank that uses several small groups for one type: ASTRA-sim may crash at its end",
        Severity.WARNING, "accept a run in which every rank has finished",
    )  # fmt: skip
    numbers = [int(g.name) if g.name.isdecimal() else 0 for g in workload.groups]
    is_high = np.array([*(number > _LAST_GROUP for number in numbers), False])
    yield (
        "h9", is_collective & is_high[nodes.group],
        f"is of a group above {_LAST_GROUP}, whose tags wrap",
        Severity.WARNING, "number the groups from 1",
    )  # fmt: skip


def is_empty_work(workload: Workload, system: System) -> BoolArray:
    """Computations of no bytes by roofline: bool by node."""
    nodes = workload.nodes
    is_device = nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host
    if not system.has_roofline:
        # Stated durations need no bytes.
        return np.zeros(len(nodes), np.bool_)
    found: BoolArray = is_device & (nodes.bytes == 0)
    return found


def empty_work(workload: Workload, system: System) -> tuple[Diagnostic, ...]:
    """The first computation of no bytes by roofline, with how many there are."""
    rows = np.flatnonzero(is_empty_work(workload, system))
    if not len(rows):
        return ()
    row = int(rows[0])
    more = f" ({len(rows)} nodes)" if len(rows) > 1 else ""
    message = f"node {int(workload.nodes.identity[row])} has no bytes and {NO_TIME}{more}"
    place = workload.nodes.location(row, workload.provenance.source_name or None)
    return (Diagnostic("h3", message, Severity.WARNING, place, NO_TIME_CURE),)


def _has_other_group(workload: Workload, system: System) -> BoolArray:
    """Nodes whose rank runs the same type in another small group, with one-entry algorithms."""
    nodes = workload.nodes
    is_small = [len(group.ranks) < workload.num_ranks for group in workload.groups]
    is_one_entry = [
        job in NATIVE_TYPES and len(system.algorithms.get(job, ())) == 1 for job in JobCollective
    ]
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    rows = rows[np.array([*is_small, False])[nodes.group[rows]]]
    rows = rows[np.array([*is_one_entry, False])[nodes.collective[rows]]]
    use = nodes.rank[rows].astype(np.int64) * len(JobCollective) + nodes.collective[rows]
    groups = max(len(workload.groups), 1)
    pairs = distinct(use * groups + nodes.group[rows])
    uses, counts = np.unique(pairs // groups, return_counts=True)
    mask = np.zeros(len(nodes), np.bool_)
    mask[rows[np.isin(use, uses[counts > 1])]] = True
    return mask
