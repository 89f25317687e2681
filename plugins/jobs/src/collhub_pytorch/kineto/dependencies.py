"""Dependencies between streams that a profile does not state, assumed where they explain it.

`torch.distributed` lets the stream of a group wait for the stream that called it, and the caller's
stream wait for the group's where `wait` is called; both are `cudaStreamWaitEvent`, of which older
files do not say for what they wait. Three rules follow, none of which contradicts a time measured:

1. A kernel of communication waits for the last other work that its thread launched before.
2. Other work waits, where its thread called `cudaStreamWaitEvent` since it last launched something,
   for the last work of another stream that ends before it starts.
3. Work that starts later than its stream and its launch explain waits for the last work of another
   stream that ends within that gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from collhub_pytorch.kineto.activities import Pairs
from collhub_pytorch.kineto.events import STREAM_WAIT, StreamWait
from hub_core.columns import BoolArray, Int64Array

if TYPE_CHECKING:
    from collhub_pytorch.kineto.device import Launches

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
