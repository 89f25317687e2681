"""The fastest of several packings, each with its best number of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_schedules import fastest_of

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.schedules import (
    WORTH_OF_HALF,
    WORTH_OF_QUARTER,
    Scheduled,
    finest_ns,
    fluid_ns,
    halved,
    most_chunks,
    rough,
    schedule,
    with_chunks,
    without_turns,
)
from hub_core.model import CollectiveKind

# The schedule's own time is not that far from the simulator's: what takes so much longer by it than
# the fastest so far is not simulated. On direct networks it comes before finer ones.
_HOPELESS, _HOPELESS_IF_ROUGH = 1.3, 1.15
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
        found = rough(task, packing)
        known = [made.scheduled for made in timed]
        # What ends too late is not simulated, nor what differs from another one by names alone.
        is_new = found is not None and not any(_are_alike(found, other) for other in known)
        if found is None or not is_new or _is_hopeless(found, least, _HOPELESS_IF_ROUGH):
            continue
        tried = list(_both_ways(packing, found, judge))
        timed.extend(tried)
        yield from tried
    timed.sort(key=lambda made: made.time_ns)
    # Each packing by the way that suits it better.
    ways: dict[int, TimedSchedule] = {}
    for made in timed:
        ways.setdefault(id(made.packing), made)
    least_ns = timed[0].time_ns if timed else 0
    for made in ways.values():
        if made.time_ns > _NEAR * timed[0].time_ns or _is_too_late(task, made):
            continue
        for finer in _finer(task, made, judge, least_ns):
            least_ns = min(least_ns, finer.time_ns)
            yield finer


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
        if found is None or _is_hopeless(found, least, _HOPELESS):
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
    while least_ns > _AT_ITS_RATE * fluid_ns(task, packing):
        # By their own time fewer chunks take longer: they help where the simulator says otherwise.
        if least_ns <= (1 + WORTH_OF_HALF) * _own_ns(found):
            return
        fewer = halved(task, packing, found)
        if fewer is None:
            return
        time_ns = judge(packing, fewer)
        yield TimedSchedule(packing, fewer, time_ns)
        if time_ns >= least_ns:
            return
        found, least_ns = fewer, time_ns


def _are_alike(found: Scheduled, other: Scheduled) -> bool:
    """Whether two schedules have as many messages, which start and end at the same times."""
    one, two = found.pipeline, other.pipeline
    if one.time_ps != two.time_ps or len(one.transfers) != len(two.transfers):
        return False
    return all(
        np.array_equal(np.sort(times), np.sort(others))
        for times, others in (
            (one.transfers.start, two.transfers.start),
            (one.transfers.finish, two.transfers.finish),
        )
    )


def _both_ways(
    packing: PlacedPacking,
    found: Scheduled,
    judge: Judge,
) -> Iterator[TimedSchedule]:
    """A schedule with turns on every link and without.

    The order of messages that meet at switches is not the schedule's to decide: some go better
    without turns.
    """
    for scheduled in (found, without_turns(found)):
        yield TimedSchedule(packing, scheduled, judge(packing, scheduled))


def _finer(
    task: PackingTask, made: TimedSchedule, judge: Judge, least_ns: int
) -> Iterator[TimedSchedule]:
    """More chunks of a packing, as it went better; or half of them, where these are too many.

    `least_ns`: the fastest so far of all packings.
    """
    # Its rate allows no gain that would be worth the messages.
    if made.time_ns <= (1 + WORTH_OF_QUARTER) * fluid_ns(task, made.packing):
        return
    most = most_chunks(task, made.packing)
    if most == made.scheduled.chunks:
        return
    if made.scheduled.has_turns:
        yield from _finer_in_turn(task, made, judge, most, least_ns)
        return
    finest = _again(task, made, judge, most)
    if finest is None:
        return
    if finest.time_ns * (1 + WORTH_OF_QUARTER) < made.time_ns:
        yield finest
        return
    # Fewer messages wait for each other where chunks are larger.
    if finest.time_ns >= made.time_ns:
        fewer = _again(task, made, judge, most // 2)
        if fewer is not None:
            yield fewer


def _finer_in_turn(
    task: PackingTask, made: TimedSchedule, judge: Judge, most: int, least_ns: int
) -> Iterator[TimedSchedule]:
    """Half of the most chunks first, as small ones in turn hold each other up at switches."""
    fewer = _again(task, made, judge, most // 2)
    if fewer is None:
        return
    yield fewer
    # Twice the chunks fill a pipeline in half of the time, which gains half as much once more:
    # where not even all as much would do, they are not tried.
    gained_ns = made.time_ns - fewer.time_ns
    if gained_ns <= 0 or fewer.time_ns - gained_ns >= least_ns:
        return
    finest = _again(task, made, judge, most)
    if finest is not None:
        yield finest


def _again(
    task: PackingTask, made: TimedSchedule, judge: Judge, chunks: int
) -> TimedSchedule | None:
    """A packing with so many chunks, in turn where it was before; None where that is no news."""
    if chunks == made.scheduled.chunks:
        return None
    found = with_chunks(task, made.packing, chunks)
    if found is None:
        return None
    scheduled = found if made.scheduled.has_turns else without_turns(found)
    return TimedSchedule(made.packing, scheduled, judge(made.packing, scheduled))


def _is_too_late(task: PackingTask, made: TimedSchedule) -> bool:
    """Whether more chunks would not be faster, either, than what is reached already."""
    if task.within_ns is None:
        return False
    return finest_ns(made.time_ns, fluid_ns(task, made.packing)) >= task.within_ns


def _is_slower(
    task: PackingTask,
    packing: PlacedPacking,
    least_ns: int | None,
) -> bool:
    """Whether the rate of a packing alone makes it no faster than the fastest so far."""
    if least_ns is None:
        return False
    return fluid_ns(task, packing) >= least_ns


def _is_hopeless(found: Scheduled, least_ns: int | None, far: float) -> bool:
    """Whether a schedule takes so many times as long by itself as another by the simulator."""
    return least_ns is not None and _own_ns(found) > far * least_ns


def _own_ns(found: Scheduled) -> float:
    """Nanoseconds of a schedule by itself."""
    return found.pipeline.time_ps / 1000
