"""The fastest of several packings, each with its best number of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collhub_schedules import fastest_of

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.schedules import Scheduled, Schedules, best_schedule, coarser

# The schedule's own time is not that far from the simulator's: what takes so much longer by it than
# the fastest so far is not simulated.
_HOPELESS = 1.3

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
    """Every packing with its best number of chunks.

    Unless its rate alone makes it slower than what there is.
    """
    if task.budget.is_interrupted:
        # Ctrl-C has ended a proof: the first packing stands, and the result comes at once.
        packings = packings[:1]
    least: int | None = None
    near = 1
    for place, packing in enumerate(packings):
        task.progress(place / len(packings), packing.method)
        # Its rate alone makes it slower than what there is.
        if least is not None and task.collective_bytes * 10**9 / packing.rate >= least:
            continue
        worth_timing = _worth_timing(task, packing, near)
        if not worth_timing:
            continue
        # Packings of one network want about as many chunks.
        near = worth_timing[0].chunks
        for scheduled in worth_timing:
            if least is not None and scheduled.pipeline.time_ps > _HOPELESS * 1000 * least:
                continue
            time_ns = judge(packing, scheduled)
            least = time_ns if least is None else min(least, time_ns)
            yield TimedSchedule(packing, scheduled, time_ns)


def _worth_timing(task: PackingTask, packing: PlacedPacking, near: int) -> list[Scheduled]:
    """The best schedule, and where messages meet at switches coarser ones as well.

    Their order there is not the schedule's to decide: of larger chunks, fewer wait for each
    other. The one with the stated number of chunks, where that is stated.
    """
    schedules = Schedules(task, packing)
    if task.chunks is not None:
        return [schedules.stated(task.chunks)]
    found = best_schedule(schedules, near)
    if found is None:
        return []
    if task.network.is_switchless:
        return [found]
    return [found, *coarser(schedules, found)]
