"""The contents of a report: collectives, ranks, stragglers, and what a network would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_pytorch.analysis import (
    Meetings,
    MeetingTimes,
    RankTime,
    Stragglers,
    find_stragglers,
    is_measured,
    matched,
    meeting_times,
    rank_times,
)
from collhub_pytorch.job import fact_list
from collhub_pytorch.replay import CollectiveTime, Replay, measured, replayed
from hub_core.columns import Int64Array
from hub_core.model import JobCollective, NodeKind, Workload


@dataclass(frozen=True, slots=True)
class CausedWaiting:
    """How many communications waited for a rank, and the time that their other ranks waited."""

    rank: int
    calls: int
    waiting_ns: int


@dataclass(frozen=True, slots=True)
class CallsAlike:
    """Communications of one kind, size and group, with their times added up over calls and ranks.

    `kind`: as the hub names it, or `send`. `bytes` -1 where the profile does not state it. `group`:
    the name of the process group, "" for all ranks. `calls`: how often all of its ranks came
    together. `waiting_ns`: of the `measured_count` ranks that have files; None where no call has
    two of them, as nothing then tells waiting from transfer. `bus_bandwidth`: in bytes/s, as
    nccl-tests defines it, None without size or time. `stragglers`: those waited for longest first.
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
        """The share of the time of its kernels in which they only wait, of ranks with files."""
        if self.waiting_ns is None:
            return None
        transferring = self.transferring_ns * self.measured_count / max(1, self.rank_count)
        total = self.waiting_ns + transferring
        return 100 * self.waiting_ns / total if total else 0.0


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Idle time of the streams of a rank in ns, added up: see `collhub_pytorch.rank_nodes`."""

    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True)
class RankFindings:
    """One rank: its span by the profile and by the replay, and its times in ns.

    `waiting_ns` None for a rank whose waiting is not measured. `last_count`: how many
    communications waited for this rank only. `caused_waiting_ns`: how long the others did. `idle`:
    None without a device, and for ranks without a file.
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
    """The job with other times of collectives: how long it takes, and each rank's span, in ns."""

    measured_ns: int
    job_ns: int
    span_ns: tuple[int, ...]

    @property
    def saved_percent(self) -> float:
        """The share of the job's time that is saved; negative where it grows."""
        return _percent(self.measured_ns - self.job_ns, self.measured_ns)


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a report says; `job_ns`: from the first begin of a rank to the last end.

    `instant`: the job if its collectives took no time, the most that a network can save.
    """

    workload: Workload
    meetings: Meetings
    calls: tuple[CallsAlike, ...]
    ranks: tuple[RankFindings, ...]
    job_ns: int
    instant: Saving


def findings_of(workload: Workload) -> Findings:
    """What the profile says of itself. Raises `InputError` for workloads without times."""
    meetings = matched(workload)
    profile = measured(workload)
    waits = meeting_times(profile.times, meetings)
    stragglers = find_stragglers(workload, profile.times, meetings, waits)
    again = replayed(workload, meetings=meetings)
    free = replayed(workload, lambda kind, size, ranks: 0, meetings)
    instant = Saving(profile.job_ns, free.job_ns, free.span_ns)
    calls = calls_alike(workload, meetings, (waits, stragglers))
    ranks = _rank_findings(workload, waits, stragglers, (profile, again), meetings)
    return Findings(workload, meetings, tuple(calls), tuple(ranks), profile.job_ns, instant)


def kinds_of(calls: Sequence[CallsAlike]) -> list[CallsAlike]:
    """The calls of each kind together; `rank_count` and `measured_count` are the largest."""
    found = []
    for kind in sorted({one.kind for one in calls}):
        own = [one for one in calls if one.kind == kind]
        waiting = [one.waiting_ns for one in own if one.waiting_ns is not None]
        found.append(
            CallsAlike(
                kind,
                -1,
                "",
                max(one.rank_count for one in own),
                sum(one.calls for one in own),
                sum(one.transferring_ns for one in own),
                sum(waiting) if waiting else None,
                max(one.measured_count for one in own),
            )
        )
    return found


def saving(findings: Findings, collective_time: CollectiveTime) -> Saving:
    """The replay with these times against the replay with those measured."""
    replay = replayed(findings.workload, collective_time, findings.meetings)
    return Saving(findings.job_ns, replay.job_ns, replay.span_ns)


def _percent(part: int, whole: int) -> float:
    """`part` of `whole` in percent, 0.0 where `whole` is 0."""
    return 100 * part / whole if whole else 0.0


@dataclass(slots=True)
class _Sums:
    """Sums over communications of one kind, size and group; `caused`: calls and ns by rank."""

    calls: int = 0
    transferring_ns: int = 0
    waiting_ns: int | None = None
    measured_count: int = 0
    # Means over the ranks of a call, added up over calls.
    time_ns: float = 0
    caused: dict[int, list[int]] = field(default_factory=dict)


def calls_alike(
    workload: Workload,
    meetings: Meetings,
    times: tuple[MeetingTimes, Stragglers] | None = None,
) -> list[CallsAlike]:
    """Communications by kind, size and group, those that take longest first; 0 without times."""
    sums: dict[tuple[str, int, str, int], _Sums] = {}
    measured_rows = is_measured(workload)
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        entry = sums.setdefault(_likeness(workload, rows), _Sums())
        entry.calls += 1
        if times is not None:
            transferring = times[0].transferring[rows]
            entry.transferring_ns += int(transferring.sum())
            entry.time_ns += float(transferring.mean())
            _add_waiting(entry, rows[measured_rows[rows]], meeting, times)
    found = [_calls_of(key, entry) for key, entry in sums.items()]
    return sorted(found, key=lambda one: (-one.transferring_ns - (one.waiting_ns or 0), one.kind))


def _add_waiting(
    entry: _Sums,
    rows: Int64Array,
    meeting: int,
    times: tuple[MeetingTimes, Stragglers],
) -> None:
    """Add the waiting of one communication; `rows`: its nodes of measured ranks."""
    waits, stragglers = times
    count = int(stragglers.measured[meeting])
    entry.measured_count = max(entry.measured_count, count)
    if count < 2:
        return
    entry.waiting_ns = (entry.waiting_ns or 0) + int(waits.waiting[rows].sum())
    rank = int(stragglers.rank[meeting])
    if rank >= 0:
        caused = entry.caused.setdefault(rank, [0, 0])
        caused[0] += 1
        caused[1] += int(stragglers.caused_ns[meeting])


def _calls_of(key: tuple[str, int, str, int], entry: _Sums) -> CallsAlike:
    kind, size, group, rank_count = key
    caused = [CausedWaiting(rank, *sums) for rank, sums in entry.caused.items()]
    traffic = entry.calls * _bus_bytes(kind, size, rank_count)
    return CallsAlike(
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


def _bus_bytes(kind: str, size: int, rank_count: int) -> float:
    """The bytes of one call that `busbw` of nccl-tests counts; 0 where nothing is known or moved.

    `size`: what a rank puts in. nccl-tests divides the full buffer (of all ranks for all-gather and
    gather) by the time, and multiplies by 2 (n - 1) / n for an all-reduce, (n - 1) / n for
    collectives in which every rank keeps its own part, and 1 for the others. Source:
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
    }
    return size * factors.get(kind, 1.0)


def _likeness(workload: Workload, rows: Int64Array) -> tuple[str, int, str, int]:
    nodes, first = workload.nodes, int(rows[0])
    kind = "send"
    if nodes.kind[first] == NodeKind.COLLECTIVE:
        kind = JobCollective(int(nodes.collective[first])).name.lower().replace("_", "-")
    group = int(nodes.group[first])
    name = workload.groups[group].name if group >= 0 else ""
    return kind, int(nodes.bytes[rows].max()), name, len(rows)


def _rank_findings(
    workload: Workload,
    waits: MeetingTimes,
    stragglers: Stragglers,
    replays: tuple[Replay, Replay],
    meetings: Meetings,
) -> list[RankFindings]:
    """An entry for every rank, in order; `replays`: the times measured, and those replayed."""
    nodes = workload.nodes
    profile, again = replays
    times = rank_times(workload, profile.times)
    measured_rows = is_measured(workload)
    # Communications in which two ranks or more are measured tell waiting from transfer.
    is_known = np.append(stragglers.measured >= 2, False)[meetings.of_node] & measured_rows
    found = []
    for rank in range(workload.num_ranks):
        own = slice(int(nodes.rank_indptr[rank]), int(nodes.rank_indptr[rank + 1]))
        caused = stragglers.rank == rank
        found.append(
            RankFindings(
                rank,
                profile.span_ns[rank],
                again.span_ns[rank],
                int(waits.transferring[own].sum()),
                int(waits.waiting[own][is_known[own]].sum()) if is_known[own].any() else None,
                int(caused.sum()),
                int(stragglers.caused_ns[caused].sum()),
                times[rank],
                _idle_time(workload, rank),
            )
        )
    return found


def _idle_time(workload: Workload, rank: int) -> IdleTime | None:
    """The idle time of all streams of a rank together."""
    streams = (fact_list(workload, "idle") or [None] * workload.num_ranks)[rank]
    if not isinstance(streams, list):
        return None
    names = ("host_wait_ns", "kernel_wait_ns", "other_ns")
    sums = [sum(int(str(one[name])) for one in streams if isinstance(one, dict)) for name in names]
    return IdleTime(*sums)
