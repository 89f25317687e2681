"""Prepare a job so that ASTRA-sim can run it, and determine the losses of the written folder.

Cures: exact times, numbered groups, a last computation; hazards and cures were measured with the
public release of March 2026. Algorithms that single collectives of a job name become custom
algorithms of ASTRA-sim, which maps numbers of nodes to traces, regardless of the rank; these traces
have one size. Losses are found by reading the written folder back and simulating it: it contains
only data that ASTRA-sim reads, so the reader sees it as ASTRA-sim does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from collhub_astra_sim.folders.configurations import NODE_LIMIT
from collhub_astra_sim.folders.folder import COMM_TYPES
from collhub_astra_sim.folders.read import read_job
from collhub_astra_sim.options import JobFolderOptions, JobOptions
from collhub_astra_sim.workloads.hazards import EXTENSION, find_hazards
from collhub_astra_sim.workloads.node_work import is_timed_by_duration
from collhub_astra_sim.workloads.simulator import simulate
from collhub_astra_sim.workloads.system import MAX_GROUP, System
from hub_core import HubError, Loss
from hub_core.columns import BoolArray, Int64Array, distinct
from hub_core.model import (
    NODE_DEFAULTS,
    NODE_DTYPES,
    Algorithm,
    CollectiveKind,
    InputError,
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Severity,
    Workload,
    format_ranks,
    parse_whole,
)
from hub_core.plugin_api import Artifact, Source, SourcePart, WorkloadRequest

EXACT_SYSTEM = {"peak-perf": 0.002, "local-mem-bw": 1000000000, "roofline-enabled": 1}
"""A roofline with which 2d + 1 operations on 1 byte take d ns; without it, durations are whole us.
"""

_MICRO_NS = 1000


def apply_cures(workload: Workload) -> tuple[Workload, list[str]]:
    """Change a workload so that ASTRA-sim can run it; return it with a description of each change.

    The changes are, in this order:

    - Process groups get new names, which are numbers, if a name is not a number
      (`_assign_numbers`).
    - If there are collectives of groups and of all ranks, the latter get a group of all ranks.
    - On ranks with host computations, memory nodes or markers, a computation of 1 ns is appended.

    Only the last change affects times, by 1 ns. Without changes the same object and [] are
    returned.
    """
    notes = []
    cures: tuple[tuple[Callable[[Workload], Workload], str], ...] = (
        (_assign_numbers, "process groups are numbered, as ASTRA-sim knows no other names"),
        (_add_group_of_all, "collectives of all ranks name a group of all, besides smaller groups"),
        (_add_last_computations, "a last computation of 1 ns follows host and memory nodes"),
    )
    for cure, note in cures:
        # A cure returns the same object if there is nothing to do.
        changed = cure(workload)
        if changed is not workload:
            notes.append(note)
        workload = changed
    return workload, notes


def needs_exact_times(workload: Workload) -> bool:
    """Return whether a device computation has a duration that is no multiple of 1 us.

    ASTRA-sim reads durations in integer microseconds, so such durations would be rounded.
    Missing durations (negative) and 0, and computations on the host, do not count.
    """
    # Missing durations are negative, and take 1 ns.
    inexact = workload.nodes.duration_ns.clip(0) % _MICRO_NS > 0
    # One such node is enough to change the system.
    return bool((_find_device_computations(workload.nodes) & inexact).any())


def set_exact_times(workload: Workload) -> Workload:
    """Return the job with numbers of operations instead of durations at computations on devices.

    ASTRA-sim reads durations only in integer microseconds. With the system configuration
    `EXACT_SYSTEM`, 2 d + 1 operations on 1 byte take exactly d ns. Durations below 1 ns and missing
    ones become 1 ns. `operations` and `bytes` of these nodes are replaced, and their other
    attributes (`extra`) removed; the column `duration_ns` stays. Computations on the host are not
    changed.
    """
    nodes = workload.nodes
    is_changed = _find_device_computations(nodes)
    # A computation of 0 ns takes 1 ns with durations, too.
    duration = np.maximum(nodes.duration_ns, 1)
    operations = np.where(is_changed, 2 * duration + 1, nodes.operations)
    size = np.where(is_changed, 1, nodes.bytes)
    extra = np.where(is_changed, -1, nodes.extra).astype(nodes.extra.dtype)
    changed = replace(nodes, operations=operations, bytes=size, extra=extra)
    return replace(workload, nodes=changed)


def carry_host_times(workload: Workload) -> Workload:
    """Round the times of host computations to whole microseconds, keeping the sum of each rank.

    The host computations of a rank are taken in the order of their identities, in which ASTRA-sim
    executes ready nodes. The time of a node becomes 1000 ns * (floor(sum including the node) -
    floor(sum before the node)), with sums in microseconds. So a remainder is carried to the next
    node, and the sum of a rank decreases by less than 1 us. Missing durations count as 0. Returns a
    changed copy of the job; other nodes are equal.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COMPUTE) & nodes.on_host)
    rows = rows[np.lexsort((nodes.identity[rows], nodes.rank[rows]))]
    total = np.cumsum(nodes.duration_ns[rows].clip(0))
    # Every rank begins without a remainder.
    first = np.searchsorted(nodes.rank[rows], nodes.rank[rows])
    before = np.concatenate([[0], total])[first]
    micros = (total - before) // _MICRO_NS
    is_first = first == np.arange(len(rows))
    steps = micros - np.where(is_first, 0, np.concatenate([[0], micros[:-1]]))
    duration = nodes.duration_ns.copy()
    duration[rows] = steps * _MICRO_NS
    return replace(workload, nodes=replace(nodes, duration_ns=duration))


def _find_device_computations(nodes: NodeColumns) -> BoolArray:
    """Return the computations that are not on the host: bool by node."""
    # Computations on the host have their duration in every system.
    return nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host


def _is_number(name: str) -> bool:
    """Return whether a name is a number of ASCII digits from 1 to `MAX_GROUP`."""
    return bool(parse_whole(name, MAX_GROUP))


def _assign_numbers(workload: Workload) -> Workload:
    """Rename process groups whose names are no numbers to unused numbers.

    A number is a name of ASCII digits with a value from 1 to 10^12 - 1; such names are
    kept. In the order of the groups, each remaining group gets the smallest number, from 1
    on, that is not yet the value of a name; `01` has the value 1, as ASTRA-sim reads it.
    Return the same object if all names are numbers, otherwise a copy.
    """
    used_numbers = {int(group.name) for group in workload.groups if _is_number(group.name)}
    free = (str(number) for number in count(1) if number not in used_numbers)
    if all(_is_number(group.name) for group in workload.groups):
        return workload
    groups = [
        group if _is_number(group.name) else ProcessGroup(next(free), group.ranks)
        for group in workload.groups
    ]
    return replace(workload, groups=tuple(groups))


def _add_group_of_all(workload: Workload) -> Workload:
    """Assign the collectives without a process group to a new group of all ranks.

    This is done only if the job has both collectives without a group and collectives with one:
    ASTRA-sim would number their streams together, and messages would not match. Otherwise
    `workload` itself is returned. The new group is the last one. Its name is the highest group
    name plus 1; all names must be integers as text (`ValueError` otherwise). Changed nodes lose
    their `extra` attributes. `workload` is not changed.
    """
    nodes = workload.nodes
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    is_ungrouped = is_collective & (nodes.group < 0)
    if not is_ungrouped.any() or not (is_collective & (nodes.group >= 0)).any():
        return workload
    # All names are numbers at this point.
    numbers = [int(group.name) for group in workload.groups]
    group_of_all = ProcessGroup(str(max(numbers) + 1), tuple(range(workload.num_ranks)))
    group = np.where(is_ungrouped, len(workload.groups), nodes.group).astype(nodes.group.dtype)
    extra = np.where(is_ungrouped, -1, nodes.extra).astype(nodes.extra.dtype)
    changed = replace(nodes, group=group, extra=extra)
    return replace(workload, nodes=changed, groups=(*workload.groups, group_of_all))


def _add_last_computations(workload: Workload) -> Workload:
    """Append a computation of 1 ns to every rank with host computations, memory or marker nodes.

    Without this node ASTRA-sim may abort at the end of such a rank. Memory nodes are LOAD and
    STORE. The new node is a computation on the device, the last row of its rank, and has data
    dependencies on all nodes of its rank without data or control successors. All new nodes have
    the same identity, the highest one of the job plus 1, because ASTRA-sim starts the highest
    number of a rank last. Returns the same object if no rank has such nodes, else a changed copy.
    """
    nodes = workload.nodes
    is_risky = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE, NodeKind.MARKER)
    is_risky |= nodes.is_kind(NodeKind.COMPUTE) & nodes.on_host
    ranks = distinct(nodes.rank[is_risky]).astype(np.int64)
    if not len(ranks):
        return workload
    edges, control = nodes.data_edges, nodes.control_edges
    # Nodes without successors.
    is_last = np.isin(nodes.rank, ranks)
    is_last[edges[0]] = False
    is_last[control[0]] = False
    lasts = np.flatnonzero(is_last)
    added = len(nodes) + np.searchsorted(ranks, nodes.rank[lasts])
    # The highest number of a rank gets a slot last.
    highest = int(nodes.identity.max(initial=0))
    columns = {
        name: np.full(len(ranks), default, np.int64) for name, default in NODE_DEFAULTS.items()
    }
    values = {"identity": highest + 1, "kind": int(NodeKind.COMPUTE), "duration_ns": 1}
    columns |= {name: np.full(len(ranks), value) for name, value in values.items()}
    new_nodes = columns | {"rank": ranks}
    table = {
        # One dtype per column: 64-bit identities would lose digits if combined with other integer
        # types.
        name: np.concatenate([getattr(nodes, name), new_nodes[name].astype(dtype)])
        for name, dtype in NODE_DTYPES.items()
    }
    data = np.concatenate([edges[0], lasts]), np.concatenate([edges[1], added])
    changed = NodeColumns.from_columns(workload.num_ranks, table, data, control)
    return replace(workload, nodes=changed)


@dataclass(frozen=True, slots=True)
class CustomSets:
    """The algorithms that nodes of a job name, as sets of traces.

    `workload`: the job, possibly with renumbered nodes. `programs`: (algorithm, bytes of its
    collective) by name `KIND-NUMBER`. `per_node`: names of programs by identity of the collective
    nodes.
    """

    workload: Workload
    programs: Mapping[str, tuple[Algorithm, int]] = field(default_factory=dict)
    per_node: Mapping[int, str] = field(default_factory=dict)


def collect_custom_sets(workload: Workload) -> CustomSets:
    """Collect the custom algorithms of a job: one set of traces per algorithm and size.

    A custom algorithm replaces ASTRA-sim's own algorithm at the collective nodes that name it.
    The size is the bytes of the node; for an all-gather without counts it is this times the
    ranks of the group. Sets are numbered from 0, by position of the algorithm in the workload,
    then by size.

    `programs` maps names such as `all-gather-1` to (algorithm, size). `per_node` maps
    identities of nodes to names. Both are empty, with the workload itself, if no node names an
    algorithm. In a copy of the workload, all nodes get new identities if two collectives of
    one identity have different sets, if only one of them has a set, or if an identity of a
    node with a set is at least `NODE_LIMIT` (2^31).

    Raises `InputError` for a node with counts but no algorithm (`no-algorithm`). Then it is
    raised for an algorithm with another number of ranks than the group, or of another
    collective (`algorithm`).
    """
    nodes = workload.nodes
    is_open = (nodes.counts >= 0) & (nodes.algorithm < 0)
    if is_open.any():
        row = int(np.argmax(is_open))
        message = f"node {nodes.identity[row]}: ASTRA-sim has no native {workload.kind_of(row)}"
        cure = "run collhub expand, which replaces it by messages"
        raise InputError(message, location=nodes.location(row), cure=cure, code="no-algorithm")
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm >= 0))
    if not len(rows):
        return CustomSets(workload)
    sizes = np.array([*(len(group.ranks) for group in workload.groups), workload.num_ranks])
    ranks = sizes[nodes.group[rows]]
    # An all-gather counts the input of a rank, algorithms the entire output.
    is_gather = (nodes.collective[rows] == JobCollective.ALL_GATHER) & (nodes.counts[rows] < 0)
    total_bytes = nodes.bytes[rows] * np.where(is_gather, ranks, 1)
    _check_fits(workload, rows, ranks)
    # One set of traces for each algorithm and size.
    keys = np.stack([nodes.algorithm[rows].astype(np.int64), total_bytes])
    distinct_keys, key_of_row = np.unique(keys, axis=1, return_inverse=True)
    programs = {}
    for number, (index, size) in enumerate(distinct_keys.T.tolist()):
        algorithm = workload.algorithms[index]
        programs[f"{algorithm.collective.kind}-{number}"] = algorithm, size
    names = list(programs)
    workload = _make_numbers_unambiguous(workload, rows, key_of_row)
    identities = workload.nodes.identity[rows].tolist()
    per_node = {
        node: names[index] for node, index in zip(identities, key_of_row.tolist(), strict=True)
    }
    return CustomSets(workload, programs, per_node)


def _check_fits(workload: Workload, rows: Int64Array, ranks: Int64Array) -> None:
    """Raise `InputError` (`algorithm`) for the first node whose algorithm does not fit it.

    `rows`: nodes with an algorithm; `ranks`: number of ranks of each node's group. All nodes are
    checked for the first rule before any is checked for the second:

    1. The algorithm has as many ranks as the group.
    2. The collective of the algorithm, without a suffix "-v", is that of the node. All collectives
       that are not in `COMM_TYPES`, such as broadcast, count as unknown. They fit only a node whose
       collective is unknown (-1).
    """
    nodes = workload.nodes
    # Positions in the group are ranks of the algorithm.
    rank_counts = [algorithm.num_ranks for algorithm in workload.algorithms]
    kinds = [algorithm.collective.kind.removesuffix("-v") for algorithm in workload.algorithms]
    types = [COMM_TYPES.get(CollectiveKind(kind), -1) for kind in kinds]
    used = nodes.algorithm[rows]
    for is_wrong, reason in (
        (np.array(rank_counts)[used] != ranks, "has another number of ranks than its group"),
        (np.array(types)[used] != nodes.collective[rows], "is of another collective"),
    ):
        if is_wrong.any():
            row = int(rows[np.argmax(is_wrong)])
            message = f"the algorithm of node {nodes.identity[row]} {reason}"
            raise InputError(message, location=nodes.location(row), code="algorithm")


def _make_numbers_unambiguous(
    workload: Workload, rows: Int64Array, key_of_row: Int64Array
) -> Workload:
    """Renumber all nodes if their identities do not determine which algorithm ASTRA-sim runs.

    ASTRA-sim maps an identity to one set of traces (a custom algorithm) on all ranks. `rows`: nodes
    with a custom algorithm, at least one. `key_of_row`: number of the set of traces of each.

    Nodes are renumbered if any of these holds:

    - Two collectives with the same identity have different sets of traces.
    - Of two collectives with the same identity, one has a set and the other is native.
    - An identity of `rows` is at least `NODE_LIMIT`.

    The new identity is position * ranks + rank. The position is the number of nodes of the rank
    with a smaller old identity. Nothing else changes. Returns `workload` itself if no condition
    holds.
    """
    nodes = workload.nodes
    choice = np.full(len(nodes), -1, np.int64)
    choice[rows] = key_of_row
    is_collective: BoolArray = nodes.is_kind(NodeKind.COLLECTIVE)
    identity = nodes.identity[is_collective].astype(np.int64)
    # Include native collectives: ASTRA-sim would run the algorithm for their numbers as well.
    pairs = np.unique(np.stack([identity, choice[is_collective]]), axis=1)
    is_in_range = nodes.identity[rows].max() < NODE_LIMIT
    if len(np.unique(identity)) == pairs.shape[1] and is_in_range:
        return workload
    order = np.lexsort((nodes.identity, nodes.rank))
    position = np.empty(len(nodes), np.int64)
    position[order] = np.arange(len(nodes)) - nodes.rank_indptr[nodes.rank[order]]
    numbers = position * workload.num_ranks + nodes.rank
    return replace(workload, nodes=replace(nodes, identity=numbers.astype(np.uint64)))


def compute_written_losses(
    artifacts: Sequence[Artifact], workload: Workload, exact_ns: Int64Array | None, network: str
) -> tuple[Loss, ...]:
    """Read a written folder back and return its differences from the job, as losses.

    `workload`: the written job. `exact_ns`: int64, the duration of every node before rounding.
    `network`: backend of the simulation. If the folder cannot be read (`HubError`), the result
    is a single loss `simulation`. Otherwise the losses are, in this order:

    1. Rounded durations and dropped roots (`_report_lost_values`). They are omitted if
       `exact_ns` is None, because the job became a custom algorithm.
    2. One loss `hazard CODE` for each finding of `find_hazards`: inputs on which ASTRA-sim
       hangs, aborts or computes wrong results. Errors and warnings count.
    3. One loss `simulation` with the first diagnostic, if some ranks do not finish in a simulation
       of the folder by the hub (it names these ranks), or if the simulation raises `HubError` (for
       all ranks). The simulation is run only if no hazard is an error.

    The result is () without differences.
    """
    parts = [SourcePart(artifact.name, artifact.content) for artifact in artifacts]
    folder = Source("folder", tuple(parts), lambda finding: None)
    try:
        written = read_job(folder, JobFolderOptions())
    except HubError as error:
        return (Loss("simulation", "all ranks", f"the folder cannot be read back: {error}"),)
    # A custom algorithm is checked separately, and its nodes are not those of the workload.
    losses = [] if exact_ns is None else [*_report_lost_values(written, workload, exact_ns)]
    findings = find_hazards(written, _read_system(written))
    losses += [
        Loss(f"hazard {finding.code}", str(finding.location.rank), finding.message)
        for finding in findings
    ]
    if any(finding.severity is Severity.ERROR for finding in findings):
        return tuple(losses)
    try:
        times = simulate(WorkloadRequest(written), JobOptions(network=network))
    except HubError as error:
        reason = error.diagnostics[0] if error.diagnostics else error
        message = f"ASTRA-sim cannot run the job: {reason}"
        return (*losses, Loss("simulation", "all ranks", message))
    if times.time_ns is None:
        ranks = [rank for rank, end in enumerate(times.rank_finish_ns) if end is None]
        message = f"never finish: {times.diagnostics[0]}"
        losses.append(Loss("simulation", f"ranks {format_ranks(ranks)}", message))
    return tuple(losses)


def _read_system(workload: Workload) -> System:
    """Return the system configuration that the reader of folders stored in the job.

    Raise `KeyError` if the job has none, because it was not read from a folder. Raise
    `InputError` for an invalid configuration.
    """
    folder = workload.extensions[EXTENSION]
    assert isinstance(folder, dict)
    return System.of_json(str(folder["system"]))


def _report_lost_values(
    written: Workload, workload: Workload, exact_ns: Int64Array
) -> Iterator[Loss]:
    """Yield a loss if durations were rounded, then one if roots of collectives were dropped.

    `written`: the job as read back from the folder, with the same rows as the job `workload`.
    `exact_ns`: durations by row before rounding. Negative (missing) durations count as 0. Only
    nodes that ASTRA-sim times by their duration are compared. The first loss gives the number of
    nodes with another duration, and the rank whose sum of durations changes most, in absolute
    value (the lowest of equal ones), with this change and its exact sum in ns. The second loss
    gives the number of nodes, of any kind, whose `root` differs.
    """
    is_timed = is_timed_by_duration(written, _read_system(written))
    # Without a duration, or with 0, a node takes 1 ns.
    exact = np.where(is_timed, exact_ns.clip(0), 0)
    difference_ns = exact - np.where(is_timed, written.nodes.duration_ns.clip(0), 0)
    if difference_ns.any():
        ranks = written.nodes.rank
        changes_ns = np.abs(np.bincount(ranks, difference_ns, written.num_ranks)).astype(np.int64)
        rank = int(changes_ns.argmax())
        total_ns = int(exact[ranks == rank].sum())
        message = (
            f"ASTRA-sim reads whole microseconds: {int((difference_ns != 0).sum())} nodes are "
            f"rounded, which changes rank {rank} by {int(changes_ns[rank])} of {total_ns} ns"
        )
        yield Loss("duration_ns", "host nodes and broadcasts", message)
    roots = int((workload.nodes.root != written.nodes.root).sum())
    if roots:
        yield Loss("root", f"{roots} nodes", "ASTRA-sim knows no root: a broadcast is a timer")
