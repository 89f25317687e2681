"""Activities of the streams of one rank, and dependencies that explain their start times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.calls import Call
from collhub_pytorch.kineto.events import STREAM_WAIT, StreamWait
from collhub_pytorch.rank_nodes import StreamIdle
from hub_core.columns import BoolArray, Int64Array

Pairs = tuple[Int64Array, Int64Array]
NO_PAIRS: Pairs = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RankProfile:
    """Activities and points of one rank, times in ns of its own clock; -1 means none.

    Activities are in the order of their starts, collectives of the host in that of their issue;
    points in that of their times.

    Activities (kernels, copies; collectives of the host in profiles without a device): `start`,
    `end`; `stream`; `label`: index of `names`; `call`: index of `calls` for communication;
    `issue`: the point that issued it. Points of the host: `time`; `awaited`: the activity for whose
    end the host waited before it went on; `work`: index of `names` for what the host did since the
    point before, -1 where nothing is known of it.

    `assumed`, `stated`: (earlier activity, later activity), dependencies between streams that
    explain what the file shows, and those that it states. `unknown`: kernels of communication of
    which nothing tells what they do; `communication_names`: their names. `memory_names`: names of
    activities that copy or set memory. `is_recorded`: bool[activities], whether the file has the
    time of an activity; None for all. `idle`: the idle time of each stream. `host_calls`: number of
    collectives of libraries of the host, which are the last activities.
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
        """When each activity takes its place among the nodes: at its start, or at its issue.

        Collectives of the host are placed at their issue: that is the order common to all ranks.
        """
        times = self.start.copy()
        first = 0 if self.is_on_host else len(times) - self.host_calls
        times[first:] = self.time[self.issue[first:]]
        return times


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The runtime's calls by time; `of_activity`: the one that launched each activity, or -1."""

    start: Int64Array
    end: Int64Array
    thread: Int64Array
    kind: Int64Array
    of_activity: Int64Array

    def issue_times(self, start: Int64Array) -> Int64Array:
        """Return the time in ns at which each activity was launched; its `start` if unknown."""
        times = start.copy()
        # Files without calls of the runtime have no launches to look up.
        is_launched = self.of_activity >= 0
        times[is_launched] = self.start[self.of_activity[is_launched]]
        return times

    def that_launch(self) -> BoolArray:
        """Mask of the calls that launched an activity."""
        mask = np.zeros(len(self.start), np.bool_)
        mask[self.of_activity[self.of_activity >= 0]] = True
        return mask


# How long work may take to start after its launch without another reason.
_USUAL_LATENCY_NS = 20_000
# How far back the last end of another stream is sought.
_MOST_LOOKED_AT = 64


def assumed_dependencies(
    start: Int64Array,
    end: Int64Array,
    stream: Int64Array,
    is_communication: BoolArray,
    launches: Launches,
) -> Pairs:
    """(earlier, later) activities; activities are sorted by start."""
    issued_at = launches.issue_times(start)
    before = previous_on_stream(stream)
    is_told = _told_to_wait(launches) & ~is_communication
    # From here on nothing but another stream holds the work up.
    free = np.maximum(np.where(before >= 0, end[before], issued_at), issued_at)
    has_gap = (start > free + _USUAL_LATENCY_NS) & ~is_communication
    sought = np.where(is_told, np.iinfo(np.int64).min, free)
    by_end = np.argsort(end, kind="stable")
    ended = np.searchsorted(end[by_end], start, "right")
    earlier, later = _rule_of_calls(start, end, is_communication, launches)
    for activity in np.flatnonzero(is_told | has_gap).tolist():
        place = int(ended[activity])
        for other in by_end[max(0, place - _MOST_LOOKED_AT) : place][::-1].tolist():
            if end[other] <= sought[activity]:
                break
            if stream[other] != stream[activity] and issued_at[other] < issued_at[activity]:
                earlier.append(other)
                later.append(activity)
                break
    return np.array(earlier, np.int64), np.array(later, np.int64)


def stated_dependencies(
    waits: Sequence[StreamWait], stream: Int64Array, correlation: Int64Array
) -> Pairs:
    """(earlier, later) activities of the waits that a file states: the next and the last work."""
    by_number = np.argsort(correlation, kind="stable")
    numbers = correlation[by_number]
    rows_of = {one: by_number[stream[by_number] == one] for one in np.unique(stream).tolist()}
    numbers_of = {one: numbers[stream[by_number] == one] for one in rows_of}
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


def previous_on_stream(stream: Int64Array) -> Int64Array:
    """The activity before each on its stream, or -1; activities are sorted by start."""
    order = np.argsort(stream, kind="stable")
    found = np.full(len(stream), -1, np.int64)
    is_same = stream[order][1:] == stream[order][:-1]
    found[order[1:][is_same]] = order[:-1][is_same]
    return found


def _rule_of_calls(
    start: Int64Array, end: Int64Array, is_communication: BoolArray, launches: Launches
) -> tuple[list[int], list[int]]:
    """Rule 1: what was launched last by the same thread before a kernel of communication."""
    earlier, later = [], []
    last_of_thread: dict[int, int] = {}
    issued = np.flatnonzero(launches.of_activity >= 0)
    for activity in issued[np.argsort(launches.of_activity[issued], kind="stable")].tolist():
        thread = int(launches.thread[launches.of_activity[activity]])
        if not is_communication[activity]:
            last_of_thread[thread] = activity
            continue
        other = last_of_thread.get(thread, -1)
        if other >= 0 and end[other] <= start[activity]:
            earlier.append(other)
            later.append(activity)
    return earlier, later


def _told_to_wait(launches: Launches) -> BoolArray:
    """Whether the thread of each activity called for a wait since it last launched something."""
    found = np.zeros(len(launches.of_activity), np.bool_)
    is_launch = launches.that_launch()
    is_wait = launches.kind == STREAM_WAIT
    waits: set[int] = set()
    told = np.zeros(len(launches.start), np.bool_)
    for call in np.flatnonzero(is_launch | is_wait).tolist():
        thread = int(launches.thread[call])
        if is_wait[call]:
            waits.add(thread)
        elif thread in waits:
            waits.remove(thread)
            told[call] = True
    is_issued = launches.of_activity >= 0
    found[is_issued] = told[launches.of_activity[is_issued]]
    return found
