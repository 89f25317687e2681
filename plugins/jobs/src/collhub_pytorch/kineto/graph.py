"""Build the nodes of one rank: work of the host, launched work, and dependencies.

In `torch.distributed`, the stream of a group waits for the stream that issued the collective, and
the issuing stream waits for the group's stream where `wait` is called. Both use
`cudaStreamWaitEvent`; older files do not record which work it waits for. Three rules infer these
dependencies, and none of them contradicts a measured time:

1. A kernel of communication waits for the last other work launched before it by the same thread.
2. If the thread called `cudaStreamWaitEvent` since its last launch, other work waits for the last
   work of another stream that ends before it starts.
3. Work that starts later than its stream and its launch explain waits for the last work of another
   stream that ends within that gap.

Durations and dependencies reproduce every start and end time of the profile. Nodes are:

- `start`: from the common start of all profiles to the start of this one;
- `host`, or the name of an operator: from a point of the host, or the end of the awaited activity,
  to the next point;
- `launch`: from the call to the earliest possible start on the device;
- `gap`: unexplained time between the end of all dependencies of an activity and its start;
- kernels and copies as COMPUTE, communication as COLLECTIVE, SEND or RECV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.calls import Call
from collhub_pytorch.kineto.events import STREAM_WAIT, StreamWait
from collhub_pytorch.rank_nodes import (
    GAP,
    HOST,
    LAUNCH,
    NONE,
    PASSING_TIME,
    START,
    RankNodes,
    StreamIdle,
)
from hub_core.columns import BoolArray, Int64Array

Pairs = tuple[Int64Array, Int64Array]
NO_PAIRS: Pairs = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RankProfile:
    """Activities and points of one rank, times in ns of its clock; -1 means none.

    Activities are sorted by start, collectives of the host by issue time; points are sorted by
    time.

    Activities (kernels, copies; collectives of the host in profiles without a device): `start`,
    `end`; `stream`; `label`: index of `names`; `call`: index of `calls` for communication;
    `issue`: the point that issued it. Points of the host: `time`; `awaited`: the activity for whose
    end the host waited before this point; `work`: index in `names` of the host's work since the
    previous point, -1 if unknown.

    `assumed`, `stated`: (earlier activity, later activity), inferred and recorded dependencies
    between streams. `unknown`: number of communication kernels with an unknown collective;
    `communication_names`: their names. `memory_names`: names of activities that copy or set memory.
    `is_recorded`: bool[activities], whether the file has the time of an activity; None if it has
    all. `idle`: idle time of each stream. `host_calls`: number of collectives of host libraries,
    which are the last activities.
    """

    file: str
    rank: int
    world_size: int | None
    names: Sequence[str]
    calls: Sequence[Call]
    start: Int64Array
    end: Int64Array
    stream: Int64Array
    label: Int64Array
    call: Int64Array
    issue: Int64Array
    time: Int64Array
    awaited: Int64Array
    work: Int64Array
    is_on_host: bool = False
    assumed: Pairs = NO_PAIRS
    stated: Pairs = NO_PAIRS
    unknown: int = 0
    communication_names: frozenset[str] = frozenset()
    memory_names: frozenset[str] = frozenset()
    is_recorded: BoolArray | None = None
    idle: tuple[StreamIdle, ...] = ()
    host_calls: int = 0

    def order_times(self) -> Int64Array:
        """Return the times in ns by which activities are ordered: int64[activities].

        They are the times of the issuing points for collectives that run on the host, whose
        order of issue is equal on all ranks, and start times for other activities. Collectives
        of the host are all activities of a rank without a device (`is_on_host`), otherwise the
        last `host_calls` ones.
        """
        times = self.start.copy()
        first = 0 if self.is_on_host else len(times) - self.host_calls
        times[first:] = self.time[self.issue[first:]]
        return times


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Runtime calls by time; `of_activity`: the call that launched each activity, or -1."""

    start: Int64Array
    end: Int64Array
    thread: Int64Array
    kind: Int64Array
    of_activity: Int64Array

    def issue_times(self, start: Int64Array) -> Int64Array:
        """Return the time in ns at which each activity (work of the device) was launched: int64.

        It is the start of the runtime call, or the activity's `start` if the file lacks the call.
        """
        times = start.copy()
        # Files may lack the runtime calls.
        is_launched = self.of_activity >= 0
        times[is_launched] = self.start[self.of_activity[is_launched]]
        return times

    def launch_mask(self) -> BoolArray:
        """Return which calls launched at least one activity: bool[calls]."""
        mask = np.zeros(len(self.start), np.bool_)
        mask[self.of_activity[self.of_activity >= 0]] = True
        return mask


# Maximum time from launch to start that needs no further explanation.
_USUAL_LATENCY_NS = 20_000
# Maximum number of earlier ends examined for work of another stream.
_MAX_CANDIDATES = 64


def infer_dependencies(
    start: Int64Array,
    end: Int64Array,
    stream: Int64Array,
    is_communication: BoolArray,
    launches: Launches,
) -> Pairs:
    """Infer which activity each activity waited for: two int64 arrays, (earlier, later) rows.

    Activities are kernels and copies, sorted by start; times are in ns. An unknown launch counts
    as the start of the activity. An activity has at most one pair.

    A communication depends on the last non-communication that its thread launched before it,
    on any stream. It has no pair if its launch is unknown, if there is no such activity, or if
    that activity ends after its start.

    Any other activity may have a pair if its thread called for a wait before the launch, or if it
    starts more than 20 us after it was free. It is free at its launch or at the end of the previous
    activity on its stream, whichever is later. Of the 64 latest ends at or before its start, the
    pair uses the latest (of equal ones the highest row) that is on another stream and was
    launched earlier. Without a wait, it must also end after the activity was free. Otherwise there
    is no pair.

    Pairs of communications come first, in the order of launches, then those of other activities
    by later row.
    """
    issued_at = launches.issue_times(start)
    before = find_previous_on_stream(stream)
    is_waiting = _mask_awaiting_launches(launches) & ~is_communication
    # From `free` on, only another stream can delay the work.
    free = np.maximum(np.where(before >= 0, end[before], issued_at), issued_at)
    has_gap = (start > free + _USUAL_LATENCY_NS) & ~is_communication
    earliest_end = np.where(is_waiting, np.iinfo(np.int64).min, free)
    by_end = np.argsort(end, kind="stable")
    ended = np.searchsorted(end[by_end], start, "right")
    earlier, later = _link_to_last_launch(start, end, is_communication, launches)
    for activity in np.flatnonzero(is_waiting | has_gap).tolist():
        ended_count = int(ended[activity])
        for candidate in by_end[max(0, ended_count - _MAX_CANDIDATES) : ended_count][::-1].tolist():
            if end[candidate] <= earliest_end[activity]:
                break
            if stream[candidate] != stream[activity] and issued_at[candidate] < issued_at[activity]:
                earlier.append(candidate)
                later.append(activity)
                break
    return np.array(earlier, np.int64), np.array(later, np.int64)


def convert_stream_waits(
    waits: Sequence[StreamWait], stream: Int64Array, correlation: Int64Array
) -> Pairs:
    """Convert the recorded waits of streams to dependencies between activities: (earlier, later).

    `stream`, `correlation`: int64 per activity. The correlation number identifies the call that
    launched the activity; later calls have higher numbers. A wait gives one pair:

    - later: the activity on `wait.stream` with the lowest number above `wait.after`
    - earlier: the activity on `wait.awaited` with the highest number below `wait.before`

    Of equal numbers, the first row is the later activity, and the last row the earlier one. A wait
    for which one of both activities is missing gives no pair. The pairs are two int64 arrays of
    rows in the order of `waits`. They may be repeated, and their times are not compared.
    """
    by_number = np.argsort(correlation, kind="stable")
    numbers = correlation[by_number]
    rows_of = {
        number: by_number[stream[by_number] == number] for number in np.unique(stream).tolist()
    }
    numbers_of = {number: numbers[stream[by_number] == number] for number in rows_of}
    earlier, later = [], []
    for wait in waits:
        if wait.stream not in rows_of or wait.awaited not in rows_of:
            continue
        following = int(np.searchsorted(numbers_of[wait.stream], wait.after, "right"))
        last = int(np.searchsorted(numbers_of[wait.awaited], wait.before, "left")) - 1
        if last >= 0 and following < len(rows_of[wait.stream]):
            earlier.append(int(rows_of[wait.awaited][last]))
            later.append(int(rows_of[wait.stream][following]))
    return np.array(earlier, np.int64), np.array(later, np.int64)


def find_previous_on_stream(stream: Int64Array) -> Int64Array:
    """Return the previous activity on the same stream, -1 for the first; int64[activities].

    Activities are sorted by start.
    """
    order = np.argsort(stream, kind="stable")
    previous = np.full(len(stream), -1, np.int64)
    is_same = stream[order][1:] == stream[order][:-1]
    previous[order[1:][is_same]] = order[:-1][is_same]
    return previous


def _link_to_last_launch(
    start: Int64Array, end: Int64Array, is_communication: BoolArray, launches: Launches
) -> tuple[list[int], list[int]]:
    """Return the dependencies of communications on earlier launches of their threads.

    The result is (earlier, later), two lists of activities in the order of the launches of the
    later ones. The earlier activity is the last one before it in this order that is no
    communication and was launched by the same thread. Activities of one call are ordered by row.

    A communication has no pair if its launch is unknown, if its thread has launched no such
    activity before, or if the last one ends after the start of the communication. Then no older
    activity is taken instead. Streams have no effect.
    """
    earlier, later = [], []
    last_of_thread: dict[int, int] = {}
    issued = np.flatnonzero(launches.of_activity >= 0)
    for activity in issued[np.argsort(launches.of_activity[issued], kind="stable")].tolist():
        thread = int(launches.thread[launches.of_activity[activity]])
        if not is_communication[activity]:
            last_of_thread[thread] = activity
            continue
        last_launched = last_of_thread.get(thread, -1)
        if last_launched >= 0 and end[last_launched] <= start[activity]:
            earlier.append(last_launched)
            later.append(activity)
    return earlier, later


def _mask_awaiting_launches(launches: Launches) -> BoolArray:
    """Mark the activities before whose launch their thread called for a wait: bool[activities].

    All activities of a call are marked if its thread called `STREAM_WAIT` at least once since its
    previous call that launched an activity, or since its start. The stream of the wait has no
    effect. Calls are in time order in `launches`. Activities without a known launch are not marked.
    """
    is_waiting = np.zeros(len(launches.of_activity), np.bool_)
    is_launch = launches.launch_mask()
    is_wait = launches.kind == STREAM_WAIT
    threads_with_wait: set[int] = set()
    is_after_wait = np.zeros(len(launches.start), np.bool_)
    for call in np.flatnonzero(is_launch | is_wait).tolist():
        thread = int(launches.thread[call])
        if is_wait[call]:
            threads_with_wait.add(thread)
        elif thread in threads_with_wait:
            threads_with_wait.remove(thread)
            is_after_wait[call] = True
    is_issued = launches.of_activity >= 0
    is_waiting[is_issued] = is_after_wait[launches.of_activity[is_issued]]
    return is_waiting


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
        # The earliest time of a point or an activity of the rank; 0 without any.
        firsts = [*self._profile.time[:1].tolist(), *self._profile.start[:1].tolist()]
        self._first = int(min(firsts, default=0))
        self._nodes.add(PASSING_TIME.index(START), self._first, on_host=True)
        self._waits = _waits_by_activity(profile)
        self._latency_ns = self._median_latency_ns()

    def build(self) -> RankNodes:
        """Add the nodes of the host and of the device in the order of time; return all nodes.

        A point is a time at which the work of the host changes; an activity is work of the device,
        or a collective that the host runs.

        - Each point adds one node of the host (`_add_point`), which lasts from the previous point
          to this one. For the first point, it lasts from the first time of the rank.
        - Each activity adds one node. Further nodes are added for its launch and for an unexplained
          delay before it (`_add_activity`).

        An activity of the device is sorted by its start, a collective of the host by its issue. At
        equal times, points come before activities; otherwise both keep their order. Call this
        function only once: the nodes are added to those of the builder.
        """
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
        """Add a node for the work of the host between two points in time; return its row.

        `point`: index of the later point. `previous`, `moment`: row and time in ns of the earlier
        one. The node depends on row `previous`. It also depends on the activity that the host
        awaited before the point (`profile.awaited`), if there is one that already has a row.

        Its duration is the time of the point minus `moment`, or minus the end of that activity if
        that is later. The name is that of the work of the point (`profile.work`), or `HOST` if the
        work is unknown. The row is also stored in `self._row_of_point[point]`.
        """
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
        """Add a node for an activity of a rank, and nodes for its launch and the delay before it.

        1. The activity depends on each activity that it waits for, if that one has a row. It is
           ready at their latest end, or at the first time of the rank if there is none.
        2. If the point of the host that issued it has a row, it also depends on its launch. The
           latency of the launch is its start minus the time of this point. If it becomes ready
           after the point, the latency is at most `self._latency_ns`, the usual one. A positive
           latency is a launch node after the point; otherwise the activity depends on the point
           itself. The activity is ready at the end of this latency at the earliest.
        3. Without any dependency it depends on row 0.
        4. If it starts later than it is ready, a host node `gap` has the difference as duration.
           The gap has all of these dependencies, and the activity depends on the gap only.

        Rows are added in the order launch, activity, gap. The duration of the activity is -1 if
        the profile does not record it (`is_recorded`). A collective is never a node of the host. A
        dependency that the profile does not state is marked as not recorded. The row is stored in
        `self._row_of_activity`.
        """
        profile, nodes = self._profile, self._nodes
        start, issue = int(profile.start[activity]), int(profile.issue[activity])
        waits = [wait for wait in self._waits[activity] if self._row_of_activity[wait[0]] >= 0]
        ready = max((int(profile.end[awaited]) for awaited, _ in waits), default=self._first)
        parents = [(self._row_of_activity[awaited], is_stated) for awaited, is_stated in waits]
        if issue >= 0 and self._row_of_point[issue] >= 0:
            called = int(profile.time[issue])
            is_free = ready <= called
            latency = start - called if is_free else min(start - called, self._latency_ns)
            parent = self._row_of_point[issue]
            if latency > 0:
                launch = nodes.add(PASSING_TIME.index(LAUNCH), latency, on_host=True)
                nodes.link(parent, launch)
                parent = launch
            parents.append((parent, True))
            ready = max(ready, called + latency)
        label, call = int(profile.label[activity]), int(profile.call[activity])
        name = label + len(PASSING_TIME) if label >= 0 else NONE
        duration = int(profile.end[activity]) - start
        if profile.is_recorded is not None and not profile.is_recorded[activity]:
            duration = NONE
        # A collective occupies the network, not the host, whichever thread runs it.
        is_on_host = profile.is_on_host and call < 0
        row = nodes.add(name, duration, on_host=is_on_host, call=call)
        self._row_of_activity[activity] = row
        parents = parents or [(0, True)]
        if start > ready:
            gap = nodes.add(PASSING_TIME.index(GAP), start - ready, on_host=True)
            nodes.link(gap, row)
            row = gap
        for parent, is_stated in parents:
            nodes.link(parent, row, is_stated=is_stated)

    def _median_latency_ns(self) -> int:
        """Return the median time in ns from issue to start of activities that nothing else delays.

        Those are the activities with three properties:

        - A point of the host issued them (`profile.issue`).
        - They start at or after that point.
        - All activities that they wait for end at or before that point. Without any, the first time
          of the rank takes the place of these ends.

        The median of an even number of times is the mean of the middle two, rounded down to ns. The
        result is 0 without such activities.
        """
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
    """List for each activity those that it waits for, as (activity, whether it is recorded).

    The list of an activity has this order:

    1. the previous activity on its stream, which counts as recorded
    2. the recorded dependencies
    3. the assumed dependencies

    An earlier activity in several of these is listed once, at the first place. In all three,
    an earlier activity is left out if its end is after the start of the later one. An end
    equal to that start is allowed.
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
        pairs = zip(earlier[is_true].tolist(), later[is_true].tolist(), strict=True)
        for activity, waiting in pairs:
            if all(activity != known for known, _ in waits[waiting]):
                waits[waiting].append((activity, is_stated))
    return waits
