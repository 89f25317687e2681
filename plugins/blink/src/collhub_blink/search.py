"""The fastest of several packings, each with its best number of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collhub_blink.packing import Packing
from collhub_blink.schedules import Scheduled, coarser, schedule
from collhub_blink.task import Task

Judge = Callable[[Packing, Scheduled], int]
"""Time in nanoseconds of a schedule of a packing."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A packing, its schedule, and the time in nanoseconds; `is_interrupted`: the search was cut short."""

    packing: Packing
    scheduled: Scheduled
    time_ns: int
    is_interrupted: bool = False


def fastest(task: Task, packings: Sequence[Packing], judge: Judge) -> Made | None:
    """The fastest; the first of equals; None where there is too little data for any.

    Ctrl-C ends the search, and passes where there is nothing yet.
    """
    best: Made | None = None
    try:
        for made in _candidates(task, packings, judge):
            if best is None or made.time_ns < best.time_ns:
                best = made
    except KeyboardInterrupt:
        if best is None:
            raise
        return Made(best.packing, best.scheduled, best.time_ns, True)
    return best


def _candidates(task: Task, packings: Sequence[Packing], judge: Judge) -> Iterator[Made]:
    """Every packing with its best number of chunks, unless its rate alone makes it slower than what there is.

    Where messages meet at switches, their order there is not the schedule's to decide: larger chunks, of which fewer wait
    for each other, are tried as well.
    """
    least: int | None = None
    near = 1
    for place, packing in enumerate(packings[:1] if task.budget.is_interrupted else packings):
        task.progress(place / len(packings), packing.method)
        if least is not None and task.collective_bytes * 10**9 / packing.rate >= least:
            continue
        found = schedule(task, packing, near)
        near = near if found is None else found.chunks
        for scheduled in (
            ()
            if found is None
            else (found,)
            if task.network.is_switchless
            else coarser(task, packing, found)
        ):
            time_ns = judge(packing, scheduled)
            least = time_ns if least is None else min(least, time_ns)
            yield Made(packing, scheduled, time_ns)
