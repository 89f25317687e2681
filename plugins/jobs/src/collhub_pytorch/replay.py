"""The iteration replayed from its dependencies: with measured times, and with other ones.

A communication takes place when the last of its ranks comes, and then lasts its transfer: what a
rank waited for the others is not kept but follows from when they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

import hub_core
from collhub_pytorch.analysis import Meetings, Timeline, matched, measured_timeline, meeting_times
from collhub_pytorch.analysis.timeline import timeline
from collhub_pytorch.job import has_device
from hub_core.columns import Int64Array
from hub_core.model import (
    Collective,
    CollectiveKind,
    JobCollective,
    NodeKind,
    UsageError,
    Workload,
    placed,
)
from hub_core.network import Topology

# The time in ns of a collective of so many bytes among these ranks; None keeps what was measured.
CollectiveTime = Callable[[JobCollective, int, tuple[int, ...]], int | None]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A workload in time: `span_ns` of each rank, `job_ns` from the first begin to the last end."""

    times: Timeline
    span_ns: tuple[int, ...]
    job_ns: int


def measured(workload: Workload) -> Replay:
    """The profile itself, by the times that it states."""
    return _replay_of(workload, measured_timeline(workload))


def replayed(
    workload: Workload,
    collective_time: CollectiveTime = lambda kind, size, ranks: None,
    meetings: Meetings | None = None,
) -> Replay:
    """The workload with these times of collectives, everything else as measured.

    Raises `InputError` where the workload has no times, or its ranks do not match.
    """
    meetings = meetings or matched(workload)
    profile = measured_timeline(workload)
    transfer = _measured_transfers(profile, meetings)
    _exchange(workload, meetings, collective_time, transfer)
    duration = workload.nodes.duration_ns.tolist()
    lasting = transfer.tolist()

    def ends(rows: Sequence[int], starts: Sequence[int]) -> list[int]:
        last = max(starts)
        return [
            last + lasting[row] if lasting[row] >= 0 else start + duration[row]
            for row, start in zip(rows, starts, strict=True)
        ]

    sizes = np.diff(meetings.indptr)
    return _replay_of(workload, timeline(workload, meetings.of_node, sizes, ends))


def device_rows(workload: Workload, rank: int) -> Int64Array:
    """The nodes of a rank between whose first start and last end its span lies.

    They are those of its device, or all but its begin without a device.
    """
    nodes = workload.nodes
    own = np.arange(nodes.rank_indptr[rank], nodes.rank_indptr[rank + 1])
    return own[~nodes.on_host[own]] if has_device(workload, rank) else own[1:]


def _replay_of(workload: Workload, times: Timeline) -> Replay:
    ranks = range(workload.num_ranks)
    spans = tuple(times.span_ns(device_rows(workload, rank)) for rank in ranks)
    return Replay(times, spans, int(times.end.max(initial=0)))


def _measured_transfers(profile: Timeline, meetings: Meetings) -> Int64Array:
    """From the last rank's start to the end of each node; -1 where a rank did not wait for it."""
    found = meeting_times(profile, meetings)
    is_after = (profile.end >= found.last_start) & (meetings.of_node >= 0)
    transfer: Int64Array = np.where(is_after, profile.end - found.last_start, -1)
    return transfer


def _exchange(
    workload: Workload, meetings: Meetings, time_of: CollectiveTime, transfer: Int64Array
) -> None:
    """Put the times of `time_of` in place of those measured, where it has one."""
    nodes = workload.nodes
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        first = int(rows[0])
        if nodes.kind[first] != NodeKind.COLLECTIVE or nodes.bytes[first] < 0:
            continue
        # The parts of an uneven all-to-all differ: the largest tells its time.
        size = int(nodes.bytes[rows].max())
        ranks = workload.members(int(nodes.group[first]))
        time_ns = time_of(JobCollective(int(nodes.collective[first])), size, ranks)
        if time_ns is not None:
            transfer[rows] = time_ns


# What NCCL does where no other algorithm is asked for.
USUAL_ALGORITHMS = dict.fromkeys(CollectiveKind, "ring") | {
    CollectiveKind.ALL_TO_ALL: "direct",
    CollectiveKind.GATHER: "direct",
    CollectiveKind.SCATTER: "direct",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The simulated time of a collective, and the synthesizer of its algorithm."""

    algorithm: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class NetworkTimes:
    """Times on `topology`, rank r on NPU r; `algorithms`: synthesizers by collective.

    `answers`: what has been asked so far, by kind, bytes and ranks. The root of a rooted collective
    is the first of its ranks.
    """

    topology: Topology
    algorithms: Mapping[CollectiveKind, str]
    backend: str
    registry: hub_core.Registry
    answers: dict[tuple[JobCollective, int, tuple[int, ...]], Answer] = field(default_factory=dict)

    def __call__(self, kind: JobCollective, size: int, ranks: tuple[int, ...]) -> int | None:
        """The time in ns; None for what moves nothing. Raises `HubError`."""
        question = (kind, size, ranks)
        if kind.kind is None or size == 0 or len(ranks) < 2:
            return None
        if question not in self.answers:
            name = self.algorithms.get(kind.kind) or USUAL_ALGORITHMS[kind.kind]
            self.answers[question] = Answer(name, self._time_ns(name, kind.kind, size, ranks))
        return self.answers[question].time_ns

    def _time_ns(self, name: str, kind: CollectiveKind, size: int, ranks: tuple[int, ...]) -> int:
        count = len(ranks)
        # The full buffer of a gather is what comes out.
        total = size * count if kind.traits.input_is_part else size
        root = 0 if kind.traits.is_rooted else None
        collective = Collective(kind, count, count, root=root)
        made = hub_core.synthesize(
            collective,
            self.topology,
            total,
            name=name,
            npus=ranks,
            backend=self.backend,
            registry=self.registry,
        )
        algorithm = placed(made.algorithm, ranks)
        found = hub_core.simulate(
            algorithm, self.topology, total, backend=self.backend, registry=self.registry
        )
        if found.time_ns is None:
            message = f"{self.backend} does not finish the {kind} of {name} on {self.topology.name}"
            raise UsageError(message, cure=f"choose another: --collective {kind}=NAME")
        return int(found.time_ns)
