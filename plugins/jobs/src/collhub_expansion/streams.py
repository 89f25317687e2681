"""The order in which the streams of a collective go through the queues of dimensions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple


class Phase(NamedTuple):
    """A phase of a stream: number of its template, its dimension, and roughly its time."""

    template: int
    level: int
    time_ns: int


Waits = tuple[tuple[int, int], ...]
"""(earlier, later): phases by number, those of the first stream first."""


def in_turn(count: int, at_once: int) -> Waits:
    """Streams of one phase, of which so many are under way at once."""
    return tuple((one, one + at_once) for one in range(count - at_once))


def waits_of(streams: Sequence[Sequence[Phase]], at_once: int) -> Waits:
    """What each phase of streams waits for: the one before it, and its turn in the dimension.

    A dimension has one queue, in order of arrival, and so many streams of it are active. Where
    streams meet that go to and fro, which one comes first depends on times; rough ones decide.
    """
    first = streams[0] if streams else ()
    # All streams have as many bytes, so that only their trees differ.
    levels = tuple(phase.level for phase in first)
    return _waits(levels, tuple(phase.time_ns for phase in first), len(streams), at_once)


@cache
def _waits(levels: tuple[int, ...], times: tuple[int, ...], streams: int, at_once: int) -> Waits:
    # Parents always start before their children do: no circle, whatever the times are.
    steps = len(levels)
    found = [
        (stream * steps + step, stream * steps + step + 1)
        for stream in range(streams)
        for step in range(steps - 1)
    ]
    for started in _started(levels, times, streams, at_once).values():
        found += zip(started, started[at_once:], strict=False)
    return tuple(sorted(set(found)))


def _started(
    levels: Sequence[int], times: Sequence[int], streams: int, at_once: int
) -> dict[int, list[int]]:
    """The phases that each dimension starts, in order (`proceed_to_next_vnet_baseline`)."""
    steps = len(levels)
    waiting: dict[int, deque[int]] = {level: deque() for level in levels}
    started: dict[int, list[int]] = {level: [] for level in levels}
    active = dict.fromkeys(levels, 0)
    events: list[tuple[int, int, int]] = []

    def pump(level: int, now: int) -> None:
        while waiting[level] and active[level] < at_once:
            phase = waiting[level].popleft()
            active[level] += 1
            order = sum(map(len, started.values()))
            started[level].append(phase)
            heappush(events, (now + times[phase % steps], order, phase))

    for stream in range(streams):
        waiting[levels[0]].append(stream * steps)
    pump(levels[0], 0)
    while events:
        now, _, phase = heappop(events)
        left, following = levels[phase % steps], phase + 1
        active[left] -= 1
        if following % steps == 0:
            pump(left, now)
            continue
        entered = levels[following % steps]
        # It stands in line before the one that it leaves goes on.
        waiting[entered].append(following)
        pump(left, now)
        pump(entered, now)
    return started
