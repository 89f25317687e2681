"""Predict the times of the collectives of a job by a measured machine or a simulated network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

import hub_core
from collhub_pytorch.analysis import Meetings, has_times, match_communications, measured_timeline
from collhub_pytorch.job import EXTENSION
from collhub_pytorch.replay import NetworkTimes, measure_transfers, replay_transfers
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    InputError,
    JobCollective,
    NodeColumns,
    NodeKind,
    UsageError,
    Workload,
)
from hub_core.plugin_api import (
    LibraryCall,
    LibraryTime,
    LibraryTimesRequest,
    MachineDescription,
)

CallKey = tuple[JobCollective, int, tuple[int, ...]]
"""Collective, input bytes of a rank, ranks of the job."""


class Predictor(Protocol):
    """Predicts the times of collectives by kind, size and ranks, on a machine or network."""

    @property
    def name(self) -> str:
        """Name of the machine or network in messages."""

    def predict(self, keys: Iterable[CallKey]) -> list[LibraryTime]:
        """Predict the times of calls, in their order. Raises `HubError`."""


@dataclass(slots=True)
class MachinePredictor:
    """Times that a library reaches on a machine: name of a profile, or its document.

    `ranks_per_node`: rank r is on node r // ranks_per_node; None for one rank on each GPU.
    """

    machine: str
    ranks_per_node: int | None
    registry: hub_core.Registry
    _answers: dict[CallKey, LibraryTime] = field(default_factory=dict)
    _description: MachineDescription | None = None

    @property
    def description(self) -> MachineDescription:
        """Machine of the profile, read at the first use and cached.

        Raises `HubError` for an unknown profile.
        """
        if self._description is None:
            self.predict(())
        assert self._description is not None
        return self._description

    @property
    def name(self) -> str:
        """Name of the machine."""
        return self.description.name

    def predict(self, keys: Iterable[CallKey]) -> list[LibraryTime]:
        """Return the predicted time of each call, in the order of `keys`, and cache it.

        Calls that the profile does not cover have a reason instead of a time. Only new calls are
        predicted, all in one request, equal ones once. The first call also makes a request if
        `keys` is empty, to read the machine.

        With every request, the description of the machine is stored, and `self.ranks_per_node`
        becomes the number that the machine assumes; the next request uses it. `HubError` of the
        request, such as for an unknown profile, is raised, and nothing is stored then. Barriers are
        not allowed (`AssertionError`).
        """
        listed = list(keys)
        new = [key for key in dict.fromkeys(listed) if key not in self._answers]
        if new or self._description is None:
            calls = tuple(to_library_call(*key) for key in new)
            request = LibraryTimesRequest(self.machine, calls, self.ranks_per_node)
            predicted = hub_core.predict_library_times(request, self.registry)
            self._answers.update(zip(new, predicted.times, strict=True))
            self._description = predicted.machine
            self.ranks_per_node = predicted.ranks_per_node
        return [self._answers[key] for key in listed]


@dataclass(frozen=True, slots=True)
class NetworkPredictor:
    """Simulated times of algorithms on a network; their error is not known."""

    times: NetworkTimes

    @property
    def name(self) -> str:
        """Name of the network."""
        return self.times.topology.name

    def predict(self, keys: Iterable[CallKey]) -> list[LibraryTime]:
        """Simulate the calls; return their times in order, None for one without traffic.

        Raises `HubError` for a collective without an algorithm.
        """
        return [LibraryTime(None, self.times(*key), "simulated") for key in keys]


def to_library_call(kind: JobCollective, size: int, ranks: tuple[int, ...]) -> LibraryCall:
    """Convert a collective of a job to a call of a library.

    `size`: input bytes of one rank. The call has the bytes of the full buffer: `size` x
    ranks for all-gather and gather, otherwise `size`. Raises `AssertionError` for barriers
    and collectives of unknown kind.
    """
    assert kind.kind is not None, "barriers are not predicted"
    total = size * len(ranks) if kind.kind.traits.input_is_part else size
    return LibraryCall(str(kind.kind), ranks, total)


def predict_job(workload: Workload, predictor: Predictor) -> Workload:
    """Return a copy of a job with predicted durations of its communications, in ns.

    A profile is a job that a reader of this plugin has read. In a measured profile, all nodes but
    markers have durations. The transfer time of a communication follows from the first rule that
    applies:

    1. The result of `predictor`, if it has one. It is asked for collectives of standard kinds on
       several ranks with data, and, unless the profile is measured, for messages with data. A
       message is asked as a broadcast between its two ranks, then as an all-to-all.
    2. In a measured profile: the time from the start of the last rank to the end of the node.
    3. 0 for a call without data, a barrier, or a standard collective on one rank.

    A duration is the transfer time plus the wait for the last rank. Other nodes keep theirs; a
    message without its other end gets 0 if it has none. In a job that is no profile, two kinds of
    nodes get control dependencies on their predecessor: collectives of a group on a rank, and
    computations on the device of a rank, by start. Raises `InputError` (`not-predicted`) if no rule
    applies, also for a collective of unknown kind with data; and for mismatches and cycles.
    """
    meetings = match_communications(workload)
    is_profile = EXTENSION in workload.extensions
    # Unmatched messages have no other end, so they take no time.
    is_open = workload.nodes.is_kind(NodeKind.SEND, NodeKind.RECV) & (meetings.of_node < 0)
    nodes = workload.nodes
    timed = replace(
        nodes, duration_ns=np.where(is_open & (nodes.duration_ns < 0), 0, nodes.duration_ns)
    )
    workload = replace(workload, nodes=timed)
    transfer = _predict_transfers(workload, meetings, predictor)
    transfer[(meetings.of_node >= 0) & (transfer < 0)] = 0
    lane = None
    if not is_profile:
        following = next_in_group(nodes, meetings, nodes.is_kind(NodeKind.COLLECTIVE))
        before = np.flatnonzero(following >= 0)
        workload = add_control_edges(workload, before, following[before])
        # The computations of a device run one after another; those of the host have no lane.
        is_on_device = nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host & (nodes.duration_ns > 0)
        lane = np.where(is_on_device, nodes.rank, -1).astype(np.int64)
    times = replay_transfers(workload, meetings, transfer, lane).times
    duration = np.where(meetings.of_node >= 0, times.end - times.start, workload.nodes.duration_ns)
    workload = replace(workload, nodes=replace(workload.nodes, duration_ns=duration))
    if lane is None:
        return workload
    rows = np.flatnonzero(lane >= 0)
    order = rows[np.lexsort((rows, duration[rows], times.start[rows], lane[rows]))]
    is_same = lane[order[1:]] == lane[order[:-1]]
    return add_control_edges(workload, order[:-1][is_same], order[1:][is_same])


def _predict_transfers(workload: Workload, meetings: Meetings, predictor: Predictor) -> Int64Array:
    """Return the transfer time of each node in ns by rules 1 and 2 of `predict_job`; -1 for none.

    Raises `InputError` (`not-predicted`) for a communication of `predicted_calls` without a
    predicted or measured time, and for a collective of unknown kind with data but without a
    measured time.
    """
    nodes = workload.nodes
    transfer = np.full(len(nodes), -1, np.int64)
    is_measured = has_measured_times(workload)
    if is_measured:
        transfer = measure_transfers(measured_timeline(workload), meetings)
    keys = list(predicted_calls(workload, meetings, are_messages_measured=is_measured))
    predicted = predictor.predict(key for _, key in keys)
    # NCCL's sends and receives run the kernel of its all-to-all: profiles rarely have broadcasts.
    exchanges = [
        number
        for number, ((rows, _), time) in enumerate(zip(keys, predicted, strict=True))
        if time.time_ns is None and nodes.kind[rows[0]] != NodeKind.COLLECTIVE
    ]
    exchange_keys = [
        (JobCollective.ALL_TO_ALL, 2 * keys[number][1][1], keys[number][1][2])
        for number in exchanges
    ]
    for number, time in zip(exchanges, predictor.predict(exchange_keys), strict=True):
        predicted[number] = time
    for (rows, key), time in zip(keys, predicted, strict=True):
        if time.time_ns is None:
            first = int(rows[0])
            if transfer[first] >= 0:
                continue
            kind = key[0].label
            reason = f"its {kind} of {key[1]} bytes on {len(key[2])} ranks is not predicted"
            message = f"{reason}: {time.reason}"
            cure = "choose another machine, or give --topology T instead"
            location = nodes.location(first, workload.provenance.source_name)
            raise InputError(message, location=location, cure=cure, code="not-predicted")
        transfer[rows] = round(time.time_ns)
    is_unknown = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.collective < 0) & (nodes.bytes > 0)
    is_unknown &= transfer < 0
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        message = f"its collective of unknown kind with {nodes.bytes[row]} bytes is not predicted"
        location = nodes.location(row, workload.provenance.source_name)
        cure = "state the kind of the collective in the job"
        raise InputError(message, location=location, cure=cure, code="not-predicted")
    return transfer


def has_measured_times(workload: Workload) -> bool:
    """Return whether a job is a profile in which all nodes except markers have a time."""
    return EXTENSION in workload.extensions and has_times(workload)


def predicted_calls(
    workload: Workload, meetings: Meetings, *, are_messages_measured: bool = True
) -> Iterator[tuple[Int64Array, CallKey]]:
    """Yield the communications whose times must be predicted, as (rows of nodes, key).

    The order is that of `meetings`, which has one entry per communication. Messages with only one
    end are not in `meetings`, so they are not yielded. The key is (kind, bytes, ranks). Bytes are
    the largest number of any node of the communication; with 0 bytes nothing is yielded.

    - A collective is yielded if its kind is standard (neither a barrier nor unknown) and its group
      has several ranks. The key has the ranks of the group.
    - A message has the key of a broadcast between its two ranks, in ascending order. If
      `are_messages_measured`, messages whose first node has a recorded duration (at least 0 ns) are
      omitted.
    """
    nodes = workload.nodes
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        first, size = int(rows[0]), int(nodes.bytes[rows].max())
        if nodes.kind[first] != NodeKind.COLLECTIVE:
            is_measured = are_messages_measured and nodes.duration_ns[first] >= 0
            if size > 0 and not is_measured:
                ends = int(nodes.rank[first]), int(nodes.peer[first])
                yield rows, (JobCollective.BROADCAST, size, tuple(sorted(ends)))
            continue
        ranks = workload.members(int(nodes.group[first]))
        if workload.kind_of(first) is not None and size > 0 and len(ranks) > 1:
            yield rows, (JobCollective(int(nodes.collective[first])), size, ranks)


def next_in_group(nodes: NodeColumns, meetings: Meetings, chosen: BoolArray) -> Int64Array:
    """Return, for each chosen collective, the row of the next one of the same group and rank.

    int64[nodes]; -1 for the last collective of a group and rank, and for all other nodes. `chosen`:
    bool[nodes]; collectives that are not chosen are skipped. The order is that of the numbers of
    the communications in `meetings`.
    """
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & chosen)
    rows = rows[np.lexsort((meetings.of_node[rows], nodes.group[rows], nodes.rank[rows]))]
    is_next = (nodes.group[rows[1:]] == nodes.group[rows[:-1]]) & (
        nodes.rank[rows[1:]] == nodes.rank[rows[:-1]]
    )
    following = np.full(len(nodes), -1, np.int64)
    following[rows[:-1][is_next]] = rows[1:][is_next]
    return following


def add_control_edges(workload: Workload, before: Int64Array, after: Int64Array) -> Workload:
    """Return a copy of the workload in which each row `after[i]` also depends on row `before[i]`.

    Both arrays have equal lengths. The new edges are control dependencies and are added after all
    existing ones. A pair that exists already is added again. Cycles are not checked. With empty
    arrays the copy has the same edges. The given workload is unchanged.
    """
    # Imported here: only predictions change jobs.
    from collhub_job_traces.rebuilding import columns_of

    nodes = workload.nodes
    control = nodes.control_edges
    edges = np.concatenate([control[0], before]), np.concatenate([control[1], after])
    columns = columns_of(nodes)
    return replace(
        workload,
        nodes=type(nodes).from_columns(nodes.num_ranks, columns, nodes.data_edges, edges),
    )


def has_computation_times(workload: Workload) -> bool:
    """Check whether all nodes except collectives, messages and markers have a duration.

    0 ns is a duration, -1 is none. True without such nodes.
    """
    nodes = workload.nodes
    kinds = NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV, NodeKind.MARKER
    return not bool(((nodes.duration_ns < 0) & ~nodes.is_kind(*kinds)).any())


def require_sizes(workload: Workload) -> None:
    """Raise `UsageError` if a collective other than a barrier has no recorded size (-1).

    Times of collectives cannot be predicted without sizes. A size of 0 is accepted.
    Collectives of unknown kind need a size too.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.bytes < 0))
    rows = rows[nodes.collective[rows] != JobCollective.BARRIER]
    if len(rows):
        message = f"{len(rows)} collectives have no size, so that their times cannot be predicted"
        raise UsageError(message, cure="leave out --machine and --topology")
