"""Nodes of a workload on which ASTRA-sim hangs, aborts or computes wrong results.

These are hazards H1 to H9, measured with the public release of March 2026. H4 and H5 are visible
only in a simulation: ranks that never finish, which `run_workload_layer` reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from collhub_job_traces import StatedFields, stated_fields

from collhub_astra_sim.workloads.system import MAX_GROUP, NATIVE_TYPES, System
from hub_core import NodeType
from hub_core.columns import BoolArray, distinct
from hub_core.model import (
    Diagnostic,
    JobCollective,
    NodeKind,
    Severity,
    Workload,
    parse_whole,
)

EXTENSION = "astra-sim"
"""Key of `Workload.extensions`: the texts of `system`, `network` and `memory`;

`custom`: the prefix of each of `Workload.algorithms`; `per_node`: prefixes by node.
"""
NO_TIME = "takes no time: nodes that depend on it start only when another node finishes"
NO_TIME_CURE = "specify a tensor size, or leave the node out"
ABORTS = frozenset({"h2", "host-message", "no-size", "no-tag", "foreign-end"})
"""Codes of hazards on which ASTRA-sim aborts, so that no rank has a time."""
# The tags of streams wrap around above this group.
_LAST_GROUP = 499


def find_hazards(workload: Workload, system: System) -> tuple[Diagnostic, ...]:
    """Return the inputs on which ASTRA-sim hangs, aborts or computes wrong results, as diagnostics.

    There is one diagnostic for each check that affects a node, in the order of the checks; () if
    none does. It is located at the affected node with the lowest row, and has the number of
    affected nodes if there are several. The checks are those of `_list_hardware_checks`, and then
    those of `_list_network_checks`. The latter are left out with `system.is_replay_only`, where
    every node is a timer. ASTRA-sim aborts on diagnostics whose code is in `ABORTS`. The job is not
    simulated.
    """
    diagnostics = []
    checks = [*_list_hardware_checks(workload, system)]
    # With replay-only every node is a timer, regardless of its attributes.
    if not system.is_replay_only:
        checks += _list_network_checks(workload, system)
    for code, is_affected, message, severity, cure in checks:
        rows = np.flatnonzero(is_affected)
        if len(rows):
            row = int(rows[0])
            name = f"node {int(workload.nodes.identity[row])}"
            more = f" ({len(rows)} nodes)" if len(rows) > 1 else ""
            location = workload.nodes.location(row)
            diagnostics.append(
                Diagnostic(code, f"{name} {message}{more}", severity, location, cure)
            )
    return tuple(diagnostics)


_Check = tuple[str, BoolArray, str, Severity, str]


def _list_hardware_checks(workload: Workload, system: System) -> Iterator[_Check]:
    """Yield three checks of nodes that make ASTRA-sim abort, each also if no node is affected.

    A check is (code, bool[nodes] of affected nodes, message, severity, cure). In this order:

    - `h1` (warning): computations of the host, loads, stores and markers on ranks whose last node
      to finish may be a message. This is possible if the rank has a message, or a collective with a
      custom algorithm, on which no nodes except markers depend.
    - `h2` (error): markers whose trace node has the type METADATA.
    - `host-message` (error): SEND and RECV nodes that are operations of the host.
    """
    nodes = workload.nodes
    is_memory = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE)
    is_marker = nodes.is_kind(NodeKind.MARKER)
    is_host_compute = nodes.is_kind(NodeKind.COMPUTE) & nodes.on_host
    is_risky = is_host_compute | is_memory | is_marker
    yield (
        "h1", is_risky & _find_ranks_with_final_message(workload, system)[nodes.rank],
        "breaks the statistics at the rank's end: ASTRA-sim aborts if the last node to finish is a "
        "message",
        Severity.WARNING, "let a COMPUTE node come last",
    )  # fmt: skip
    is_metadata = is_marker & _evaluate_extras(
        workload, lambda node: node.node_type == NodeType.METADATA
    )
    yield (
        "h2", is_metadata, "is a METADATA node: ASTRA-sim aborts in its statistics",
        Severity.ERROR, "leave the node out, and specify process groups in groups.json",
    )  # fmt: skip
    yield (
        "host-message", nodes.is_kind(NodeKind.SEND, NodeKind.RECV) & nodes.on_host,
        "is a message of the host (is_cpu_op): ASTRA-sim aborts by an assertion",
        Severity.ERROR, "set is_cpu_op of SEND and RECV nodes to false",
    )  # fmt: skip


def _list_network_checks(workload: Workload, system: System) -> Iterator[_Check]:
    """Yield the checks for nodes that ASTRA-sim never finishes, aborts on, or runs in no time.

    A check is (code, bool[nodes] of affected nodes, message, severity, cure); all nine are yielded
    in this order, even if no node is affected. The severity is error unless noted. Unknown bytes
    are negative. Native kinds are all-reduce, all-gather, reduce-scatter and all-to-all.

    - `h3` (warning): all markers, and computations of a device with exactly 0 bytes if the system
      has a roofline
    - `h6`: collectives of a kind that is neither native nor a broadcast, and all collectives of
      the host
    - `no-size`: native collectives of the device with unknown bytes
    - `no-size`: loads and stores with unknown bytes, also of the host
    - `no-tag`: SENDs and RECVs with extra attributes but without `comm_tag`; messages without
      extra attributes are not affected
    - `foreign-end`: SENDs whose `comm_src`, or RECVs whose `comm_dst`, is not their own rank; a
      missing or negative value does not count
    - `h7`: all-gathers with fewer bytes than `system.splits`, also with unknown bytes
    - `h8` (warning): collectives that `_has_other_group` marks: of a rank that runs one native
      kind in several groups smaller than the job
    - `h9` (warning): collectives of a group whose name is a decimal number above `_LAST_GROUP`
    """
    nodes = workload.nodes
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    is_empty = is_empty_work(workload, system) | nodes.is_kind(NodeKind.MARKER)
    yield ("h3", is_empty, NO_TIME, Severity.WARNING, NO_TIME_CURE)
    known = [*NATIVE_TYPES, JobCollective.BROADCAST]
    is_unknown = is_collective & ~np.isin(nodes.collective, known)
    yield (
        "h6", is_unknown | (is_collective & nodes.on_host),
        "is a collective that ASTRA-sim never finishes", Severity.ERROR,
        "choose another kind, and let it run on the device",
    )  # fmt: skip
    is_native = is_collective & np.isin(nodes.collective, NATIVE_TYPES) & ~nodes.on_host
    yield (
        "no-size", is_native & (nodes.bytes < 0),
        "has no comm_size, without which ASTRA-sim aborts", Severity.ERROR,
        "specify the bytes of the collective",
    )  # fmt: skip
    is_message = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)
    is_transfer = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE)
    yield (
        "no-size", is_transfer & (nodes.bytes < 0),
        "has no tensor_size, without which ASTRA-sim aborts", Severity.ERROR,
        "specify the bytes of the transfer",
    )  # fmt: skip
    yield (
        "no-tag",
        is_message & _evaluate_extras(workload, lambda node: "comm_tag" not in node.attributes),
        "has no comm_tag, without which ASTRA-sim aborts", Severity.ERROR,
        "specify a tag, equal on both sides",
    )  # fmt: skip
    yield (
        "foreign-end", is_message & _find_foreign_ends(workload),
        "names another rank as its local end: ASTRA-sim aborts", Severity.ERROR,
        "comm_src of a SEND, and comm_dst of a RECV, is the rank of the file",
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
    names = [group.name for group in workload.groups]
    numbers = [
        parse_whole(name, MAX_GROUP) if name.isascii() and name.isdecimal() else 0 for name in names
    ]
    is_high = np.array([*(number is None or number > _LAST_GROUP for number in numbers), False])
    yield (
        "h9", is_collective & is_high[nodes.group],
        f"is of a group above {_LAST_GROUP}, whose tags wrap",
        Severity.WARNING, "number the groups from 1",
    )  # fmt: skip


def _evaluate_extras(workload: Workload, is_true: Callable[[StatedFields], bool]) -> BoolArray:
    """Return for which nodes a condition on their extra attributes is true: bool[nodes].

    Many nodes may share one record of extra attributes (`workload.extras`); `is_true` is called
    once per record. False for nodes without a record, and for empty records.
    """
    values = [bool(extra) and is_true(stated_fields(extra)) for extra in workload.extras]
    mask: BoolArray = np.array([*values, False])[workload.nodes.extra]
    return mask


def _find_foreign_ends(workload: Workload) -> BoolArray:
    """Return which messages declare another rank than their own as their local end: bool[nodes].

    The local end is the attribute `comm_src` of a SEND and `comm_dst` of a RECV. False for
    messages without this attribute or with a negative value of it, and for all other nodes.
    """
    nodes = workload.nodes
    mask = np.zeros(len(nodes), np.bool_)
    for kind, name in ((NodeKind.SEND, "comm_src"), (NodeKind.RECV, "comm_dst")):
        values = [stated_fields(extra).numbers.get(name, -1) for extra in workload.extras]
        end = np.array([*values, -1], np.int64)[nodes.extra]
        mask |= nodes.is_kind(kind) & (end >= 0) & (end != nodes.rank)
    return mask


def _find_ranks_with_final_message(workload: Workload, system: System) -> BoolArray:
    """Return the ranks on which a message or a custom algorithm may be the last work: bool[ranks].

    A node may be last if no node other than markers depends on it. Nodes behind a marker do not
    count, because a marker ends with its parents. A rank is True if a node that may be last is:

    - a SEND or RECV, or
    - a COLLECTIVE of a kind in `system.custom`, or
    - a COLLECTIVE whose identity is a key of `per_node` in the job's extension `EXTENSION`.
    """
    nodes = workload.nodes
    is_last = np.ones(len(nodes), np.bool_)
    parents, children = nodes.edges()
    # A marker finishes with its parents.
    is_last[parents[~nodes.is_kind(NodeKind.MARKER)[children]]] = False
    is_message = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)
    extension = workload.extensions.get(EXTENSION)
    per_node = extension.get("per_node") if isinstance(extension, dict) else None
    custom = np.isin(nodes.collective, [int(kind) for kind in system.custom])
    if isinstance(per_node, dict) and per_node:
        numbers = np.array([int(node) for node in per_node], np.uint64)
        custom |= np.isin(nodes.identity, numbers)
    is_message |= nodes.is_kind(NodeKind.COLLECTIVE) & custom
    ranks = np.zeros(workload.num_ranks, np.bool_)
    ranks[nodes.rank[is_last & is_message]] = True
    return ranks


def is_empty_work(workload: Workload, system: System) -> BoolArray:
    """Return which nodes are computations of 0 bytes that a roofline times: bool[nodes].

    If the system has a roofline model, ASTRA-sim computes times from bytes and operations.
    Otherwise durations are given, and all entries are False. Computations with unknown
    bytes (negative) and those of the host are False too.
    """
    nodes = workload.nodes
    is_device = nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host
    if not system.has_roofline:
        # Given durations need no bytes.
        return np.zeros(len(nodes), np.bool_)
    is_empty: BoolArray = is_device & (nodes.bytes == 0)
    return is_empty


def report_empty_work(workload: Workload, system: System) -> tuple[Diagnostic, ...]:
    """Return one warning (`h3`) about computations of 0 bytes; () if there are none.

    Counted are computations on the device with exactly 0 bytes, if the system has a roofline model.
    ASTRA-sim then computes their times from bytes, so that they take no time. Computations of the
    host and unknown (negative) bytes are not counted. Without a roofline model the result is ().

    The warning names the first such node by row, with its location. It gives the number of such
    nodes only if there are several.
    """
    rows = np.flatnonzero(is_empty_work(workload, system))
    if not len(rows):
        return ()
    row = int(rows[0])
    more = f" ({len(rows)} nodes)" if len(rows) > 1 else ""
    message = f"node {int(workload.nodes.identity[row])} has no bytes and {NO_TIME}{more}"
    location = workload.nodes.location(row, workload.provenance.source_name or None)
    return (Diagnostic("h3", message, Severity.WARNING, location, NO_TIME_CURE),)


def _has_other_group(workload: Workload, system: System) -> BoolArray:
    """Mark collectives of ranks that run the same kind in several small groups: bool[nodes].

    A collective counts if both hold:

    - Its group is small, i.e. lacks some rank of the job.
    - ASTRA-sim runs its kind natively (all-reduce, all-gather, reduce-scatter, all-to-all), and
      `system` has exactly one algorithm for the kind.

    A node is True if it is a counted collective, and its rank has counted collectives of the same
    kind in at least two different groups. All other nodes are False.
    """
    nodes = workload.nodes
    is_small = [len(group.ranks) < workload.num_ranks for group in workload.groups]
    is_one_entry = [
        job in NATIVE_TYPES and len(system.algorithms.get(job, ())) == 1 for job in JobCollective
    ]
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    rows = rows[np.array([*is_small, False])[nodes.group[rows]]]
    rows = rows[np.array(is_one_entry)[nodes.collective[rows]]]
    use = nodes.rank[rows].astype(np.int64) * len(JobCollective) + nodes.collective[rows]
    groups = max(len(workload.groups), 1)
    pairs = distinct(use * groups + nodes.group[rows])
    uses, counts = np.unique(pairs // groups, return_counts=True)
    mask = np.zeros(len(nodes), np.bool_)
    mask[rows[np.isin(use, uses[counts > 1])]] = True
    return mask
