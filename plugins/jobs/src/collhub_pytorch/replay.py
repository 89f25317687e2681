"""Replay an iteration from its dependencies, with measured or simulated times of collectives.

A communication starts when its last rank arrives and then takes its transfer time. The measured
waiting times are not replayed: waiting follows from the replayed arrival times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

import hub_core
from collhub_pytorch.analysis import (
    Meetings,
    Timeline,
    is_communication,
    match_communications,
    measure_waiting,
    measured_timeline,
)
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

# (collective, bytes, ranks) -> time in ns; None keeps the measured time.
CollectiveTime = Callable[[JobCollective, int, tuple[int, ...]], int | None]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Times of a workload: `span_ns` of each rank, `job_ns` from first start to last end.

    A span is the time from the first start to the last end of the nodes of a rank that are not on
    the host; without recorded work of a device, of all nodes except the first.
    """

    times: Timeline
    span_ns: tuple[int, ...]
    job_ns: int


def measured(workload: Workload) -> Replay:
    """Return the times of the profile itself."""
    return _to_replay(workload, measured_timeline(workload))


def replay_job(
    workload: Workload,
    collective_time: CollectiveTime = lambda kind, size, ranks: None,
    meetings: Meetings | None = None,
    *,
    keeps_shorter: bool = False,
) -> Replay:
    """Replay a job by its dependencies with other times of collectives; return all times.

    A communication starts when its last rank arrives, and then takes its transfer time, so
    that waiting follows from the replayed arrivals. Computations keep their durations, and
    messages their measured transfer times. So do collectives of unknown kind or size.

    `collective_time(kind, bytes, ranks)` is called once per collective, with the largest bytes of
    its ranks; for counts per pair of ranks, with the most bytes that one rank sends. It returns the
    time in ns, or None to keep the measured transfer time. `keeps_shorter`: a node whose measured
    time is shorter keeps that. `meetings`: the matched communications of the job, computed if None.
    Raises `InputError` if a node has no time, if the communications of the ranks do not match, and
    for cyclic dependencies. Errors of `collective_time` pass through.
    """
    meetings = meetings or match_communications(workload)
    transfer = measure_transfers(measured_timeline(workload), meetings)
    nodes = workload.nodes
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        first = int(rows[0])
        is_known = nodes.collective[first] >= 0 and nodes.bytes[first] >= 0
        if nodes.kind[first] != NodeKind.COLLECTIVE or not is_known:
            continue
        # Sizes of an uneven all-to-all differ: the largest determines its time.
        size = int(nodes.bytes[rows].max())
        if (
            nodes.counts[first] >= 0
            and (counts := workload.counts[nodes.counts[first]]).is_per_pair
        ):
            size = int(counts.table.sum(axis=1).max())
        ranks = workload.members(int(nodes.group[first]))
        time_ns = collective_time(JobCollective(int(nodes.collective[first])), size, ranks)
        if time_ns is not None:
            transfer[rows] = np.minimum(transfer[rows], time_ns) if keeps_shorter else time_ns
    return replay_transfers(workload, meetings, transfer)


def replay_transfers(
    workload: Workload,
    meetings: Meetings,
    transfer_ns: Int64Array,
    lane: Int64Array | None = None,
) -> Replay:
    """Compute the times of a job from its dependencies and given times of its communications.

    A node can start when all of its parents have ended. A node without a communication ends after
    its recorded duration (0 for markers). The nodes of one communication end only after each of
    them could start, at these times:

    - `transfer_ns` (int64[nodes]) is at least 0: latest start of the communication's nodes plus
      `transfer_ns`. The node keeps its own, possibly earlier, start.
    - `transfer_ns` is -1: own start plus own duration (0 if it has none), without waiting.

    `transfer_ns` of nodes without a communication is ignored. `lane`: lane of each node, -1 for
    none. Nodes of one lane without communication run one at a time: first the one that can start
    first, then by row. None: all run at once.

    The result has start and end of all nodes, and `job_ns`, the latest end (0 without nodes), in ns
    from the start of the job. `span_ns` of a rank is the time from the first start to the last end
    of its device nodes. A rank without a device counts all nodes but its first one.

    Raises `InputError`: `no-times` for a node that is no marker and has neither a duration nor a
    communication; `deadlock` if nodes wait for each other.
    """
    # -1 is no time of a node.
    duration = workload.nodes.duration_ns.clip(0).tolist()
    lasting = transfer_ns.tolist()

    def ends(rows: Sequence[int], starts: Sequence[int]) -> list[int]:
        last = max(starts)
        return [
            last + lasting[row] if lasting[row] >= 0 else start + duration[row]
            for row, start in zip(rows, starts, strict=True)
        ]

    sizes = np.diff(meetings.indptr)
    return _to_replay(workload, timeline(workload, meetings.of_node, sizes, ends, lane))


def replay_instantly(workload: Workload, meetings: Meetings) -> Replay:
    """Replay a job whose communication takes no time: no network can be faster.

    Collectives of all kinds end when the last of their ranks could start, messages when both ranks
    could. A send that ended before its receive started does not wait for it, as measured.
    Computations keep their durations. Raises `InputError` if the workload has no times.
    """
    nodes = workload.nodes
    transfer = measure_transfers(measured_timeline(workload), meetings)
    is_waiting = (transfer >= 0) | nodes.is_kind(NodeKind.COLLECTIVE)
    # Calls without a known peer, and messages that do not wait, last as long as their node.
    duration = np.where(
        is_communication(workload), nodes.duration_ns.clip(max=0), nodes.duration_ns
    )
    instant = replace(workload, nodes=replace(nodes, duration_ns=duration))
    return replay_transfers(instant, meetings, np.where(is_waiting, 0, -1))


def _to_replay(workload: Workload, times: Timeline) -> Replay:
    nodes = workload.nodes
    spans: list[int] = []
    for rank in range(workload.num_ranks):
        rows = np.arange(nodes.rank_indptr[rank], nodes.rank_indptr[rank + 1])
        # Without work of a device, the first node is the time before the rank's start.
        span_rows = rows[~nodes.on_host[rows]] if has_device(workload, rank) else rows[1:]
        spans.append(times.span_ns(span_rows))
    return Replay(times, tuple(spans), int(times.end.max(initial=0)))


def measure_transfers(profile: Timeline, meetings: Meetings) -> Int64Array:
    """Measure the time in ns from the last rank's start to the end of each node: int64[nodes].

    The last rank is the one that starts last in the node's communication. The time is 0 for
    a node that ends at this start. It is -1 for nodes of no communication, and for nodes
    that ended before the last rank started.
    """
    waits = measure_waiting(profile, meetings)
    is_after = (profile.end >= waits.last_start) & (meetings.of_node >= 0)
    transfer: Int64Array = np.where(is_after, profile.end - waits.last_start, -1)
    return transfer


# Algorithms without --collective, as in NCCL.
DEFAULT_ALGORITHMS = dict.fromkeys(CollectiveKind, "ring") | {
    CollectiveKind.ALL_TO_ALL: "direct",
    CollectiveKind.GATHER: "direct",
    CollectiveKind.SCATTER: "direct",
}


@dataclass(frozen=True, slots=True)
class SimulatedTime:
    """Simulated time of a collective, and the synthesizer of its algorithm."""

    algorithm: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class NetworkTimes:
    """Simulated times on `topology`, rank r on NPU r; `algorithms`: synthesizers by collective.

    `timing`: the simulator, and the machine that its times describe.
    `answers`: cache of simulated times by kind, bytes and ranks. The root of a rooted collective
    is the first of its ranks.
    """

    topology: Topology
    algorithms: Mapping[CollectiveKind, str]
    timing: hub_core.TimingSource
    registry: hub_core.Registry
    answers: dict[tuple[JobCollective, int, tuple[int, ...]], SimulatedTime] = field(
        default_factory=dict
    )

    def __call__(self, kind: JobCollective, size: int, ranks: tuple[int, ...]) -> int | None:
        """Simulate a collective, and return its time in ns; None for collectives without traffic.

        `size`: input bytes of one rank. Rank r is on NPU r. There is no traffic for a collective
        without a standard kind, with 0 bytes, or with fewer than 2 ranks.

        The algorithm is the one chosen for the kind; otherwise `direct` for all-to-all, gather
        and scatter, and `ring` for all other kinds. Results are cached by kind, size and ranks.
        Raises `HubError` of synthesis and simulation, also if the simulator does not finish.
        """
        question = (kind, size, ranks)
        if kind.kind is None or size == 0 or len(ranks) < 2:
            return None
        if question not in self.answers:
            name = self.algorithms.get(kind.kind) or DEFAULT_ALGORITHMS[kind.kind]
            self.answers[question] = SimulatedTime(
                name, self._time_ns(name, kind.kind, size, ranks)
            )
        return self.answers[question].time_ns

    def _time_ns(self, name: str, kind: CollectiveKind, size: int, ranks: tuple[int, ...]) -> int:
        count = len(ranks)
        # The full buffer of a gather is its output.
        total = size * count if kind.traits.input_is_part else size
        root = 0 if kind.traits.is_rooted else None
        collective = Collective(kind, count, count, root=root)
        synthesis = hub_core.synthesize(
            collective,
            self.topology,
            total,
            name=name,
            npus=ranks,
            registry=self.registry,
        )
        algorithm = synthesis.algorithm
        # On a part of the NPUs the algorithm has a rank for every NPU, which is its placement.
        if algorithm.num_ranks == count:
            algorithm = placed(algorithm, ranks)
        simulation = hub_core.simulate(
            algorithm,
            self.topology,
            total,
            backend=self.timing.backend,
            options=self.timing.options,
            registry=self.registry,
        )
        if simulation.time_ns is None:
            network = self.topology.name
            message = f"{self.timing.backend} does not finish the {kind} of {name} on {network}"
            raise UsageError(message, cure=f"choose another: --collective {kind}=NAME")
        return int(simulation.time_ns)
