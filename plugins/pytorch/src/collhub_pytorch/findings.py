"""What is said of a profile: collectives, ranks, and what another network would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array

from collhub_pytorch.analysis import (
    Meetings,
    MeetingTimes,
    matched,
    meeting_times,
    overlap_percent,
)
from collhub_pytorch.replay import CollectiveTime, Replay, measured, replayed
from hub_core.model import JobCollective, NodeKind, Workload


@dataclass(frozen=True, slots=True)
class CallsAlike:
    """Communications of one kind, size and group, with their times added up over calls and ranks.

    `kind`: as the hub names it, or `send`. `bytes` -1 where the profile does not say. `group`: the
    name of the process group, "" for all ranks. `calls`: how often all of its ranks came together.
    """

    kind: str
    bytes: int
    group: str
    rank_count: int
    calls: int
    transferring_ns: int
    waiting_ns: int

    @property
    def waiting_percent(self) -> float:
        """The part of the time of its kernels in which they only wait."""
        return _percent(self.waiting_ns, self.waiting_ns + self.transferring_ns)


@dataclass(frozen=True, slots=True)
class RankSaid:
    """One rank: its span by the profile and by the replay, and its communication, in ns.

    `last_count`: how many communications waited for this rank alone.
    """

    rank: int
    span_ns: int
    replayed_ns: int
    transferring_ns: int
    waiting_ns: int
    overlap_percent: float | None
    last_count: int


@dataclass(frozen=True, slots=True)
class Saving:
    """The job with other times of collectives: how long it takes, and each rank's span, in ns."""

    measured_ns: int
    job_ns: int
    span_ns: tuple[int, ...]

    @property
    def saved_percent(self) -> float:
        """How much of the job's time goes away; negative where it grows."""
        return _percent(self.measured_ns - self.job_ns, self.measured_ns)


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a report says; `job_ns`: from the first begin of a rank to the last end.

    `instant`: the job if its collectives took no time, the most that a network can save.
    """

    workload: Workload
    meetings: Meetings
    calls: tuple[CallsAlike, ...]
    ranks: tuple[RankSaid, ...]
    job_ns: int
    instant: Saving


_SUMMED = ("calls", "transferring_ns", "waiting_ns")


def findings_of(workload: Workload) -> Findings:
    """What the profile says of itself. Raises `InputError` for workloads without times."""
    meetings = matched(workload)
    profile = measured(workload)
    times = meeting_times(profile.times, meetings)
    again = replayed(workload, meetings=meetings)
    free = replayed(workload, lambda kind, size, ranks: 0, meetings)
    instant = Saving(profile.job_ns, free.job_ns, free.span_ns)
    calls = calls_alike(workload, meetings, times)
    ranks = _ranks(workload, meetings, times, (profile, again))
    return Findings(workload, meetings, tuple(calls), tuple(ranks), profile.job_ns, instant)


def kinds_of(calls: Sequence[CallsAlike]) -> list[CallsAlike]:
    """The calls of each kind together."""
    found = []
    for kind in sorted({one.kind for one in calls}):
        own = [one for one in calls if one.kind == kind]
        sums = [sum(getattr(one, name) for one in own) for name in _SUMMED]
        found.append(CallsAlike(kind, -1, "", max(one.rank_count for one in own), *sums))
    return found


def saving(findings: Findings, collective_time: CollectiveTime) -> Saving:
    """The replay with these times against the replay with those measured."""
    found = replayed(findings.workload, collective_time, findings.meetings)
    return Saving(findings.job_ns, found.job_ns, found.span_ns)


def _percent(part: int, whole: int) -> float:
    """`part` of `whole` in percent, 0.0 where `whole` is 0."""
    return 100 * part / whole if whole else 0.0


def calls_alike(
    workload: Workload, meetings: Meetings, times: MeetingTimes | None = None
) -> list[CallsAlike]:
    """Communications by kind, size and group, those that take longest first; 0 without times."""
    sums: dict[tuple[str, int, str, int], Int64Array] = {}
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        entry = sums.setdefault(_likeness(workload, rows), np.zeros(3, np.int64))
        entry[0] += 1
        if times is not None:
            entry[1:] += [times.transferring[rows].sum(), times.waiting[rows].sum()]
    found = [CallsAlike(*key, *entry.tolist()) for key, entry in sums.items()]
    return sorted(found, key=lambda one: (-one.transferring_ns - one.waiting_ns, one.kind))


def _likeness(workload: Workload, rows: Int64Array) -> tuple[str, int, str, int]:
    nodes, first = workload.nodes, int(rows[0])
    kind = "send"
    if nodes.kind[first] == NodeKind.COLLECTIVE:
        kind = JobCollective(int(nodes.collective[first])).name.lower().replace("_", "-")
    group = int(nodes.group[first])
    name = workload.groups[group].name if group >= 0 else ""
    return kind, int(nodes.bytes[rows].max()), name, len(rows)


def _ranks(
    workload: Workload, meetings: Meetings, times: MeetingTimes, replays: tuple[Replay, Replay]
) -> list[RankSaid]:
    """An entry for every rank, in order; `replays`: the times measured, and those replayed."""
    nodes = workload.nodes
    profile, again = replays
    overlap = overlap_percent(workload, profile.times)
    last = _lasts(workload, meetings, profile)
    found = []
    for rank in range(workload.num_ranks):
        own = slice(int(nodes.rank_indptr[rank]), int(nodes.rank_indptr[rank + 1]))
        said = RankSaid(
            rank,
            profile.span_ns[rank],
            again.span_ns[rank],
            int(times.transferring[own].sum()),
            int(times.waiting[own].sum()),
            overlap[rank],
            int(last[rank]),
        )
        found.append(said)
    return found


def _lasts(workload: Workload, meetings: Meetings, profile: Replay) -> Sequence[int]:
    """How often each rank was the only last one to come."""
    count = [0] * workload.num_ranks
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        start = profile.times.start[rows]
        latest = np.flatnonzero(start == start.max())
        if len(latest) == 1 and len(rows) > 1:
            count[int(workload.nodes.rank[rows[int(latest[0])]])] += 1
    return count
