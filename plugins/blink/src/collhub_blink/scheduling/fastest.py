"""The fastest of several packings, each with its best number of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collhub_schedules import fastest_of

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.behind_switches import behind_switches
from collhub_blink.scheduling.schedules import (
    WORTH_OF_HALF,
    Scheduled,
    fluid_ns,
    halved,
    schedule,
)
from collhub_blink.scheduling.timed import Judge, TimedSchedule, own_ns
from hub_core.model import CollectiveKind

# The schedule's own time is not that far from the simulator's: what takes so much longer by it than
# the fastest so far is not simulated.
_HOPELESS = 1.3
# A schedule that takes no more than so many times what its rate allows is not cut otherwise.
_AT_ITS_RATE = 1.02


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
    """Schedules of the packings that may be the fastest."""
    if task.budget.is_interrupted:
        # Ctrl-C has ended a proof: the first packing stands, and the result comes at once.
        packings = packings[:1]
    if task.network.is_switchless:
        return _in_order(task, packings, judge)
    return behind_switches(task, packings, judge)


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
    while least_ns > _AT_ITS_RATE * fluid_ns(task, packing):
        # By their own time fewer chunks take longer: they help where the simulator says otherwise.
        if least_ns <= (1 + WORTH_OF_HALF) * own_ns(found):
            return
        fewer = halved(task, packing, found)
        if fewer is None:
            return
        time_ns = judge(packing, fewer)
        yield TimedSchedule(packing, fewer, time_ns)
        if time_ns >= least_ns:
            return
        found, least_ns = fewer, time_ns


def _is_slower(
    task: PackingTask,
    packing: PlacedPacking,
    least_ns: int | None,
) -> bool:
    """Whether the rate of a packing alone makes it no faster than the fastest so far."""
    if least_ns is None:
        return False
    return fluid_ns(task, packing) >= least_ns


def _is_hopeless(found: Scheduled, least_ns: int | None) -> bool:
    """Whether a schedule takes so many times as long by itself as another by the simulator."""
    return least_ns is not None and own_ns(found) > _HOPELESS * least_ns
