"""Build the nodes of one rank: work of the host, launched work, and dependencies.

Durations and dependencies reproduce every start and end time of the profile. Nodes are:

- `start`: from the common start of all profiles to the start of this one;
- `host`, or the name of an operator: from a point of the host, or the end of the awaited activity,
  to the next point;
- `launch`: from the call to the earliest possible start on the device;
- `gap`: unexplained time between the end of all dependencies of an activity and its start;
- kernels and copies as COMPUTE, communication as COLLECTIVE, SEND or RECV.
"""

from __future__ import annotations

import numpy as np

from collhub_pytorch.kineto.activities import RankProfile, find_previous_on_stream
from collhub_pytorch.rank_nodes import GAP, HOST, LAUNCH, NONE, PASSING_TIME, START, RankNodes
from hub_core.columns import Int64Array


def build_nodes(profile: RankProfile) -> RankNodes:
    """Build the nodes of a rank; the first lasts from time 0 of its clock to the first event."""
    return _Builder(profile).build()


class _Builder:
    """Merges points and activities by time, and records the row of each for dependencies."""

    def __init__(self, profile: RankProfile) -> None:
        self._profile = profile
        names = [*PASSING_TIME, *profile.names]
        calls = profile.calls
        self._nodes = RankNodes(profile.file, profile.rank, profile.world_size, names, calls)
        self._row_of_activity = [NONE] * len(profile.start)
        self._row_of_point = [NONE] * len(profile.time)
        self._first = self._beginning()
        self._nodes.add(PASSING_TIME.index(START), self._first, on_host=True)
        self._waits = _waits_by_activity(profile)
        self._latency_ns = self._median_latency_ns()

    def _beginning(self) -> int:
        """Return the earliest time of a point or an activity of the rank."""
        firsts = [*self._profile.time[:1].tolist(), *self._profile.start[:1].tolist()]
        return int(min(firsts, default=0))

    def build(self) -> RankNodes:
        """Build all nodes. At equal times, points precede the activities that they issue."""
        profile = self._profile
        times = np.concatenate([profile.time, profile.order_times()])
        is_activity = np.arange(len(times)) >= len(profile.time)
        previous, moment = 0, self._first
        for entry in np.lexsort((is_activity, times)).tolist():
            if entry >= len(profile.time):
                self._add_activity(entry - len(profile.time))
                continue
            previous = self._add_point(entry, previous, moment)
            moment = int(profile.time[entry])
        return self._nodes

    def _add_point(self, point: int, previous: int, moment: int) -> int:
        """Add a node for the work of the host since the previous point, and return its row."""
        profile, nodes = self._profile, self._nodes
        awaited = int(profile.awaited[point])
        if awaited >= 0 and self._row_of_activity[awaited] < 0:
            # Work without duration that starts at the same time.
            awaited = NONE
        since = max(moment, int(profile.end[awaited])) if awaited >= 0 else moment
        work = int(profile.work[point])
        name = PASSING_TIME.index(HOST) if work < 0 else work + len(PASSING_TIME)
        row = nodes.add(name, int(profile.time[point]) - since, on_host=True)
        nodes.link(previous, row)
        if awaited >= 0:
            nodes.link(self._row_of_activity[awaited], row)
        self._row_of_point[point] = row
        return row

    def _add_activity(self, activity: int) -> None:
        """Add a node for the activity, after nodes for its launch and an unexplained gap."""
        profile, nodes = self._profile, self._nodes
        start, issue = int(profile.start[activity]), int(profile.issue[activity])
        waits = [wait for wait in self._waits[activity] if self._row_of_activity[wait[0]] >= 0]
        ready = max((int(profile.end[awaited]) for awaited, _ in waits), default=self._first)
        parents = [(self._row_of_activity[awaited], is_stated) for awaited, is_stated in waits]
        if issue >= 0 and self._row_of_point[issue] >= 0:
            called = int(profile.time[issue])
            is_free = ready <= called
            latency = start - called if is_free else min(start - called, self._latency_ns)
            parents.append((self._launch(issue, latency), True))
            ready = max(ready, called + latency)
        row = self._add_work(activity)
        parents = parents or [(0, True)]
        if start > ready:
            gap = nodes.add(PASSING_TIME.index(GAP), start - ready, on_host=True)
            nodes.link(gap, row)
            row = gap
        for parent, is_stated in parents:
            nodes.link(parent, row, is_stated=is_stated)

    def _launch(self, issue: int, latency_ns: int) -> int:
        """Add a launch node, and return the row after which the device can start."""
        row = self._row_of_point[issue]
        if latency_ns <= 0:
            return row
        launch = self._nodes.add(PASSING_TIME.index(LAUNCH), latency_ns, on_host=True)
        self._nodes.link(row, launch)
        return launch

    def _add_work(self, activity: int) -> int:
        profile = self._profile
        label = int(profile.label[activity])
        name = label + len(PASSING_TIME) if label >= 0 else NONE
        duration = int(profile.end[activity] - profile.start[activity])
        if profile.is_recorded is not None and not profile.is_recorded[activity]:
            duration = NONE
        call = int(profile.call[activity])
        # A collective occupies the network, not the host, whichever thread runs it.
        is_on_host = profile.is_on_host and call < 0
        row = self._nodes.add(name, duration, on_host=is_on_host, call=call)
        self._row_of_activity[activity] = row
        return row

    def _median_latency_ns(self) -> int:
        """Compute the median time from call to start of activities without other delays."""
        profile = self._profile
        issued = np.flatnonzero(profile.issue >= 0)
        called = profile.time[profile.issue[issued]]
        awaited_ends = [
            [int(profile.end[awaited]) for awaited, _ in self._waits[a]] for a in issued.tolist()
        ]
        ready = np.array(
            [max(end_times, default=self._first) for end_times in awaited_ends], np.int64
        )
        free = issued[(ready <= called) & (called <= profile.start[issued])]
        if not len(free):
            return 0
        return int(np.median(profile.start[free] - profile.time[profile.issue[free]]))


def _waits_by_activity(profile: RankProfile) -> list[list[tuple[int, bool]]]:
    """List the activities that each activity waits for, and whether the file records this.

    A dependency on an activity that ends after the start of its successor is dropped.
    """
    waits: list[list[tuple[int, bool]]] = [[] for _ in range(len(profile.start))]
    before = find_previous_on_stream(profile.stream)
    followers = np.flatnonzero(before >= 0)
    for earlier, later, is_stated in (
        (before[followers], followers, True),
        (*profile.stated, True),
        (*profile.assumed, False),
    ):
        is_true = profile.end[earlier] <= profile.start[later]
        _append(waits, earlier[is_true], later[is_true], is_stated)
    return waits


def _append(
    waits: list[list[tuple[int, bool]]], earlier: Int64Array, later: Int64Array, is_stated: bool
) -> None:
    for activity, waiting in zip(earlier.tolist(), later.tolist(), strict=True):
        if all(activity != known for known, _ in waits[waiting]):
            waits[waiting].append((activity, is_stated))
