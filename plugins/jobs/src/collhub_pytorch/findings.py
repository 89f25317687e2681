"""Contents of a report: collectives, ranks, stragglers, and savings on another network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_pytorch.analysis import (
    Meetings,
    RankTime,
    Stragglers,
    WaitingTimes,
    find_stragglers,
    is_measured,
    match_communications,
    measure_rank_times,
    measure_waiting,
)
from collhub_pytorch.job import idle_streams
from collhub_pytorch.replay import CollectiveTime, Replay, measured, replay_instantly, replay_job
from hub_core.model import JobCollective, NodeKind, Workload


@dataclass(frozen=True, slots=True)
class CausedWaiting:
    """Number of communications that waited for a rank, and waiting time of their other ranks."""

    rank: int
    calls: int
    waiting_ns: int


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Communications of one kind, size and group, with times summed over calls and ranks.

    `kind`: the hub's name of the collective, or `send`. `bytes`: -1 if not recorded. `group`: name
    of the process group, "" for all ranks. `calls`: number of communications. `waiting_ns`: of the
    `measured_count` ranks with files; None if no call has two of them, because waiting cannot be
    separated from transfer then. `bus_bandwidth`: in bytes/s as defined by nccl-tests, None without
    size or time. `stragglers`: sorted by caused waiting time, longest first.
    """

    kind: str
    bytes: int
    group: str
    rank_count: int
    calls: int
    transferring_ns: int
    waiting_ns: int | None
    measured_count: int = 0
    bus_bandwidth: float | None = None
    stragglers: tuple[CausedWaiting, ...] = ()

    @property
    def waiting_percent(self) -> float | None:
        """Percentage of waiting in the kernel time of the ranks that have files.

        Kernel time is waiting plus the transfer time of these ranks, which is `transferring_ns` (of
        all ranks) times `measured_count / rank_count`. None if waiting is unknown, 0 without kernel
        time.
        """
        if self.waiting_ns is None:
            return None
        transferring = self.transferring_ns * self.measured_count / max(1, self.rank_count)
        total = self.waiting_ns + transferring
        return 100 * self.waiting_ns / total if total else 0.0


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Idle time summed over the streams of a rank in ns: see `collhub_pytorch.rank_nodes`."""

    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True)
class RankFindings:
    """One rank: its span in the profile and in the replay, and its times in ns.

    `waiting_ns`: None if it is not measured. `last_count`: number of communications that waited
    only for this rank. `caused_waiting_ns`: the waiting time of their other ranks. `idle`: None
    without a device, and for ranks without a file.
    """

    rank: int
    span_ns: int
    replayed_ns: int
    transferring_ns: int
    waiting_ns: int | None
    last_count: int
    caused_waiting_ns: int
    times: RankTime
    idle: IdleTime | None


@dataclass(frozen=True, slots=True)
class Saving:
    """Replay with other times of collectives: duration of the job and span of each rank in ns."""

    measured_ns: int
    job_ns: int
    span_ns: tuple[int, ...]

    @property
    def saved_percent(self) -> float:
        """Percentage of the job's time that is saved; negative if the job takes longer."""
        return (
            100 * (self.measured_ns - self.job_ns) / self.measured_ns if self.measured_ns else 0.0
        )


@dataclass(frozen=True, slots=True)
class ProfileFindings:
    """Contents of a report. `job_ns`: from the first start of a rank to the last end.

    `instant`: the job with communication that takes no time, the upper limit of any saving.
    """

    workload: Workload
    meetings: Meetings
    calls: tuple[CallGroup, ...]
    ranks: tuple[RankFindings, ...]
    job_ns: int
    instant: Saving


def collect_findings(workload: Workload) -> ProfileFindings:
    """Analyse a profile: match its communications, measure waiting times, and replay the job.

    The job is replayed with measured times, and with communication that takes no time, which gives
    the saving of an instant network. Raises `InputError` for workloads without times, for
    communications that do not match, and for nodes that wait for each other.
    """
    meetings = match_communications(workload)
    profile = measured(workload)
    waits = measure_waiting(profile.times, meetings)
    stragglers = find_stragglers(workload, profile.times, meetings, waits)
    replay = replay_job(workload, meetings=meetings)
    instant_replay = replay_instantly(workload, meetings)
    instant = Saving(profile.job_ns, instant_replay.job_ns, instant_replay.span_ns)
    calls = group_calls(workload, meetings, (waits, stragglers))
    ranks = _rank_findings(workload, waits, stragglers, (profile, replay), meetings)
    return ProfileFindings(workload, meetings, tuple(calls), tuple(ranks), profile.job_ns, instant)


def sum_by_kind(calls: Sequence[CallGroup]) -> list[CallGroup]:
    """Sum the call groups of each kind; one result per kind, in alphabetical order.

    Calls and times are added; `rank_count` and `measured_count` are maxima. Waiting is the sum
    of known values, None if it is unknown for all. The results have -1 bytes, the group "", no
    bus bandwidth and no stragglers.
    """
    sums = []
    for kind in sorted({call_group.kind for call_group in calls}):
        group = [call_group for call_group in calls if call_group.kind == kind]
        waiting = [
            call_group.waiting_ns for call_group in group if call_group.waiting_ns is not None
        ]
        sums.append(
            CallGroup(
                kind,
                -1,
                "",
                max(call_group.rank_count for call_group in group),
                sum(call_group.calls for call_group in group),
                sum(call_group.transferring_ns for call_group in group),
                sum(waiting) if waiting else None,
                max(call_group.measured_count for call_group in group),
            )
        )
    return sums


def saving(findings: ProfileFindings, collective_time: CollectiveTime) -> Saving:
    """Replay the job with given times of collectives, and compare it with the measured job.

    `collective_time` returns the transfer time of a collective in ns; None keeps the
    measured one. Waiting times follow from the replayed arrivals; computations keep their
    durations. The result has the measured and the new time of the job, and the span of each
    rank in the replay, in ns. Raise `InputError` if the workload has no times.
    """
    replay = replay_job(findings.workload, collective_time, findings.meetings)
    return Saving(findings.job_ns, replay.job_ns, replay.span_ns)


@dataclass(slots=True)
class _CommunicationSums:
    """Sums over communications of one kind, size and group; `caused`: calls and ns by rank."""

    calls: int = 0
    transferring_ns: int = 0
    waiting_ns: int | None = None
    measured_count: int = 0
    # Mean time over the ranks of a call, summed over calls.
    time_ns: float = 0
    caused: dict[int, list[int]] = field(default_factory=dict)


def group_calls(
    workload: Workload,
    meetings: Meetings,
    times: tuple[WaitingTimes, Stragglers] | None = None,
) -> list[CallGroup]:
    """Return the communications grouped by kind, size, group and number of ranks.

    Kind: name of the collective, or `send` for messages. Size: largest bytes of the nodes. Fields:

    - `calls`: number of communications. `transferring_ns`: sum of the transfer of all nodes.
    - `waiting_ns`: sum of the waiting of measured nodes (of ranks with a file), in communications
      with two or more measured nodes. None if there are no such communications.
    - `measured_count`: largest number of measured nodes of a communication.
    - `stragglers`: ranks that alone started last, in communications with two or more measured
      nodes; by waiting caused (longest first), then by rank.
    - `bus_bandwidth` in bytes/s: `count_bus_bytes` * calls / sum of each communication's mean
      transfer. None if either is 0.

    Sorted by transfer plus waiting (None is 0), descending, then kind, then first occurrence.
    Without `times`: `transferring_ns` and `measured_count` 0, `stragglers` empty, other times and
    bandwidth None. No communications give [].
    """
    sums: dict[tuple[str, int, str, int], _CommunicationSums] = {}
    nodes, measured_rows = workload.nodes, is_measured(workload)
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        first = int(rows[0])
        kind = "send"
        if nodes.kind[first] == NodeKind.COLLECTIVE:
            kind = JobCollective(nodes.collective[first]).label
        group = int(nodes.group[first])
        name = workload.groups[group].name if group >= 0 else ""
        key = (kind, int(nodes.bytes[rows].max()), name, len(rows))
        entry = sums.setdefault(key, _CommunicationSums())
        entry.calls += 1
        if times is None:
            continue
        waits, stragglers = times
        transferring = waits.transferring[rows]
        entry.transferring_ns += int(transferring.sum())
        entry.time_ns += float(transferring.mean())
        measured_count = int(stragglers.measured[meeting])
        entry.measured_count = max(entry.measured_count, measured_count)
        if measured_count < 2:
            continue
        waiting_ns = int(waits.waiting[rows[measured_rows[rows]]].sum())
        entry.waiting_ns = (entry.waiting_ns or 0) + waiting_ns
        rank = int(stragglers.rank[meeting])
        if rank >= 0:
            caused = entry.caused.setdefault(rank, [0, 0])
            caused[0] += 1
            caused[1] += int(stragglers.caused_ns[meeting])
    groups = [_to_call_group(key, entry) for key, entry in sums.items()]
    return sorted(groups, key=lambda one: (-one.transferring_ns - (one.waiting_ns or 0), one.kind))


def _to_call_group(key: tuple[str, int, str, int], entry: _CommunicationSums) -> CallGroup:
    kind, size, group, rank_count = key
    caused = [CausedWaiting(rank, *sums) for rank, sums in entry.caused.items()]
    traffic = entry.calls * count_bus_bytes(kind, size, rank_count)
    return CallGroup(
        kind,
        size,
        group,
        rank_count,
        entry.calls,
        entry.transferring_ns,
        entry.waiting_ns,
        entry.measured_count,
        1e9 * traffic / entry.time_ns if traffic > 0 and entry.time_ns > 0 else None,
        tuple(sorted(caused, key=lambda one: (-one.waiting_ns, one.rank))),
    )


def count_bus_bytes(kind: str, size: int, rank_count: int) -> float:
    """Return the bytes that nccl-tests divides by the time of a call to compute `busbw`.

    `size`: input bytes of one rank; n: `rank_count`. The result is `size` times

    - 2 (n - 1) / n for `all-reduce`
    - n - 1 for `all-gather` and `gather`
    - (n - 1) / n for `reduce-scatter`, `reduce-scatter-block`, `scatter` and `all-to-all`
    - 0 for `barrier` and `unknown`
    - 1 for any other text, such as `broadcast`, `reduce` and `send`

    It is 0.0 for sizes up to 0 (-1: unknown) and for fewer than 2 ranks. Source:
    doc/PERFORMANCE.md of NVIDIA/nccl-tests.
    """
    if size <= 0 or rank_count < 2:
        return 0.0
    parts = (rank_count - 1) / rank_count
    factors = {
        "all-reduce": 2 * parts,
        "all-gather": rank_count * parts,
        "gather": rank_count * parts,
        "reduce-scatter": parts,
        "reduce-scatter-block": parts,
        "scatter": parts,
        "all-to-all": parts,
        "barrier": 0.0,
        "unknown": 0.0,
    }
    return size * factors.get(kind, 1.0)


def _rank_findings(
    workload: Workload,
    waits: WaitingTimes,
    stragglers: Stragglers,
    replays: tuple[Replay, Replay],
    meetings: Meetings,
) -> list[RankFindings]:
    """Return the measured figures of every rank of the job, in order of ranks; times in ns.

    `replays`: the measured job, and its replay, in which ranks wait only as dependencies
    require; `span_ns` and `replayed_ns` are the spans of a rank in these. For each rank:

    - `transferring_ns`: sum of `waits.transferring` of its nodes
    - `waiting_ns`: sum of `waits.waiting` of its nodes in communications with at least two
      measured ranks (those with a file). None without such nodes, so also for a rank without a
      file
    - `last_count`: communications whose straggler is this rank in `stragglers`
    - `caused_waiting_ns`: sum of `stragglers.caused_ns` of these
    - `times`: `measure_rank_times` of the measured job, also for its errors
    - `idle`: sums over the streams of the rank (`idle_streams`, also for its errors)

    Ranks without a file have entries too. Without ranks, the result is [].
    """
    nodes = workload.nodes
    profile, replay = replays
    times = measure_rank_times(workload, profile.times)
    measured_rows = is_measured(workload)
    streams_of_rank = idle_streams(workload)
    # Waiting can be separated from transfer if at least two ranks are measured.
    is_known = np.append(stragglers.measured >= 2, False)[meetings.of_node] & measured_rows
    findings = []
    for rank in range(workload.num_ranks):
        rows = slice(int(nodes.rank_indptr[rank]), int(nodes.rank_indptr[rank + 1]))
        caused = stragglers.rank == rank
        streams = streams_of_rank[rank]
        idle = None
        if streams is not None:
            idle = IdleTime(
                sum(stream.host_wait_ns for stream in streams),
                sum(stream.kernel_wait_ns for stream in streams),
                sum(stream.other_ns for stream in streams),
            )
        findings.append(
            RankFindings(
                rank,
                profile.span_ns[rank],
                replay.span_ns[rank],
                int(waits.transferring[rows].sum()),
                int(waits.waiting[rows][is_known[rows]].sum()) if is_known[rows].any() else None,
                int(caused.sum()),
                int(stragglers.caused_ns[caused].sum()),
                times[rank],
                idle,
            )
        )
    return findings
