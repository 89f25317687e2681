"""The fastest of several packings, each with its best number of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collhub_schedules import fastest_of

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.schedules import (
    WORTH_OF_QUARTER,
    Scheduled,
    finest,
    halved,
    rough,
    schedule,
    without_turns,
)
from hub_core.model import CollectiveKind

# The schedule's own time is not that far from the simulator's: what takes so much longer by it than
# the fastest so far is not simulated.
_HOPELESS = 1.3
# Rough schedules that take longer than so many times the fastest get no faster than it.
_NEAR = 1.06
# A schedule that takes no more than so many times what its rate allows is not cut otherwise.
_AT_ITS_RATE = 1.02

Judge = Callable[[PlacedPacking, Scheduled], int]
"""Time in nanoseconds of a schedule of a packing."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedSchedule:
    """A packing, its schedule, and the time in nanoseconds.

    `is_interrupted`: the search was cut short.
    """

    packing: PlacedPacking
    scheduled: Scheduled
    time_ns: int
    is_interrupted: bool = False


def fastest(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    judge: Judge,
) -> TimedSchedule | None:
    """The fastest; the first of equals; None where there is too little data for any.

    Ctrl-C ends the search, and passes where there is nothing yet.
    """
    return fastest_of(_candidates(task, packings, judge), lambda made: made.time_ns)


def _candidates(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    judge: Judge,
) -> Iterator[TimedSchedule]:
    """Rough schedules of all packings first, then finer ones of those that are near the fastest."""
    if task.budget.is_interrupted:
        # Ctrl-C has ended a proof: the first packing stands, and the result comes at once.
        packings = packings[:1]
    if task.chunks is not None or task.network.is_switchless:
        yield from _in_order(task, packings, judge)
        return
    timed: list[TimedSchedule] = []
    for place, packing in enumerate(packings):
        task.progress(place / len(packings), packing.method)
        least = min((made.time_ns for made in timed), default=None)
        if _is_slower(task, packing, least):
            continue
        tried = list(_both_ways(packing, rough(task, packing), judge, least))
        timed.extend(tried)
        yield from tried
    timed.sort(key=lambda made: made.time_ns)
    # Each packing by the way that suits it better.
    ways: dict[int, TimedSchedule] = {}
    for made in timed:
        ways.setdefault(id(made.packing), made)
    for made in ways.values():
        if made.time_ns <= _NEAR * timed[0].time_ns:
            yield from _finer(task, made, judge)


def _in_order(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    judge: Judge,
) -> Iterator[TimedSchedule]:
    """Every packing by its own schedule, unless its rate alone makes it slower than another."""
    least: int | None = None
    for place, packing in enumerate(packings):
        task.progress(place / len(packings), packing.method)
        if _is_slower(task, packing, least):
            continue
        found = schedule(task, packing)
        if found is None or _is_hopeless(found, least):
            continue
        for made in _ever_fewer(task, packing, found, judge):
            least = made.time_ns if least is None else min(least, made.time_ns)
            yield made


def _ever_fewer(
    task: PackingTask, packing: PlacedPacking, found: Scheduled, judge: Judge
) -> Iterator[TimedSchedule]:
    """A schedule, and half the chunks as long as that helps where messages go both ways.

    Those up and those down the trees meet on links as the simulator alone tells.
    """
    least_ns = judge(packing, found)
    yield TimedSchedule(packing, found, least_ns)
    is_both_ways = task.collective.kind is CollectiveKind.ALL_REDUCE
    if not is_both_ways or task.chunks is not None:
        return
    while least_ns > _AT_ITS_RATE * _fluid_ns(task, packing):
        fewer = halved(task, packing, found)
        if fewer is None:
            return
        time_ns = judge(packing, fewer)
        yield TimedSchedule(packing, fewer, time_ns)
        if time_ns >= least_ns:
            return
        found, least_ns = fewer, time_ns


def _both_ways(
    packing: PlacedPacking,
    found: Scheduled | None,
    judge: Judge,
    least: int | None,
) -> Iterator[TimedSchedule]:
    """A schedule with turns on every link and without, unless it is far slower than others.

    The order of messages that meet at switches is not the schedule's to decide: some go better
    without turns.
    """
    if found is None or _is_hopeless(found, least):
        return
    for scheduled in (found, without_turns(found)):
        yield TimedSchedule(packing, scheduled, judge(packing, scheduled))


def _finer(task: PackingTask, made: TimedSchedule, judge: Judge) -> Iterator[TimedSchedule]:
    """More chunks of a packing, as it went better; or half of them, where these are too many."""
    found = finest(task, made.packing)
    if found is None or found.chunks == made.scheduled.chunks:
        return
    is_free = not made.scheduled.has_turns
    most = without_turns(found) if is_free else found
    time_ns = judge(made.packing, most)
    if time_ns * (1 + WORTH_OF_QUARTER) < made.time_ns:
        yield TimedSchedule(made.packing, most, time_ns)
        return
    fewer = halved(task, made.packing, found)
    # Fewer messages wait for each other where chunks are larger.
    if time_ns >= made.time_ns and fewer is not None:
        between = without_turns(fewer) if is_free else fewer
        yield TimedSchedule(made.packing, between, judge(made.packing, between))


def _is_slower(
    task: PackingTask,
    packing: PlacedPacking,
    least_ns: int | None,
) -> bool:
    """Whether the rate of a packing alone makes it no faster than the fastest so far."""
    if least_ns is None:
        return False
    return _fluid_ns(task, packing) >= least_ns


def _fluid_ns(task: PackingTask, packing: PlacedPacking) -> float:
    """Nanoseconds of the data at the rate of a packing, without latency."""
    return float(task.collective_bytes * 10**9 / packing.rate)


def _is_hopeless(found: Scheduled, least_ns: int | None) -> bool:
    """Whether a schedule takes much longer by itself than another by the simulator."""
    if least_ns is None:
        return False
    own_ns = found.pipeline.time_ps / 1000
    return own_ns > _HOPELESS * least_ns
