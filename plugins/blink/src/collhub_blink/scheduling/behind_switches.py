"""Schedules where messages meet at switches, which no schedule decides: the simulator tells.

What comes later than planned holds up those that take turns with it on a link, and these others.
So a schedule is tried as it is and without turns, and where both take longer than planned, with
slack before what was received is sent on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.schedules import (
    Scheduled,
    finest_ns,
    fluid_ns,
    most_chunks,
    rough,
    with_chunks,
    without_turns,
)
from collhub_blink.scheduling.timed import Judge, TimedSchedule, own_ns

# What takes so many times as long as planned is held up.
_AS_PLANNED = 1.004
# What takes no more than such a part beyond what the best rate allows is cut no finer, where that
# would be dear; nor anywhere what takes so little beyond what its own rate allows.
_AT_THE_RATE, _AT_ITS_RATE = 6.5e-3, 4e-3
# Finer schedules must promise so much, since all who work on the algorithm pay for their steps.
# To simulate many messages takes seconds, too.
_WORTH, _WORTH_IF_DEAR = 1e-3, 3e-3
# So many times the chunks are tried at once, and more if that gains such a part of what it
# promised.
_AT_ONCE, _KEPT = 4, 0.5
# Finer chunks are tried with so many parts of slack, each a turn over the depth.
_MORE_SLACK = 3


def behind_switches(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    judge: Judge,
) -> Iterator[TimedSchedule]:
    """Rough schedules of all packings first, then finer ones of those that may be the fastest."""
    best: dict[int, TimedSchedule] = {}
    for made in _rough_ones(task, packings, judge):
        yield made
        _keep(best, made)
    if task.chunks is not None:
        return
    least_ns = min((made.time_ns for made in best.values()), default=0)
    # Best first, by what each promises.
    while best:
        made = min(best.values(), key=lambda made: _promised_ns(task, made))
        is_dear = _is_dear(task, made.packing, _chunks_for_rate(task, made))
        worth = _WORTH_IF_DEAR if is_dear else _WORTH
        if _promised_ns(task, made) * (1 + worth) >= least_ns or _is_too_late(task, made):
            return
        del best[id(made.packing)]
        for finer in _finer(task, made, judge):
            yield finer
            least_ns = min(least_ns, finer.time_ns)
            # What gains less is held up at switches: more chunks are not what it lacks.
            if _keeps_promise(task, made, finer.time_ns):
                _keep(best, finer)


def _keep(best: dict[int, TimedSchedule], made: TimedSchedule) -> None:
    """Keep the faster schedule of a packing."""
    known = best.get(id(made.packing))
    if known is None or made.time_ns < known.time_ns:
        best[id(made.packing)] = made


def _rough_ones(
    task: PackingTask, packings: Sequence[PlacedPacking], judge: Judge
) -> Iterator[TimedSchedule]:
    """Every packing with few chunks, or the stated ones, in the ways that may suit it."""
    timed: list[TimedSchedule] = []
    for packing, found in _by_own_time(task, packings):
        planned = TimedSchedule(packing, found, math.ceil(own_ns(found)))
        if timed and (_is_behind(task, planned, timed) or _is_too_late(task, planned)):
            continue
        # How many ways there will be is not known: each is a part of what may be left.
        task.progress(len(timed) / (len(timed) + len(packings)), packing.method)
        for made in _ways(task, packing, found, judge):
            timed.append(made)
            yield made


def _is_behind(task: PackingTask, planned: TimedSchedule, timed: Sequence[TimedSchedule]) -> bool:
    """Whether a schedule is planned to be slower than another, and so would be with more chunks."""
    if planned.time_ns < min(made.time_ns for made in timed):
        return False
    # Deeper trees gain more from finer chunks, and may overtake flat ones.
    limit_ns = _finest_ns(task, planned)
    other_ns = min(_finest_ns(task, made) for made in timed)
    return limit_ns >= other_ns


def _by_own_time(
    task: PackingTask, packings: Sequence[PlacedPacking]
) -> list[tuple[PlacedPacking, Scheduled]]:
    """Rough schedules of packings, the fastest by itself first, without those that are alike."""
    found: list[tuple[PlacedPacking, Scheduled]] = []
    for packing in packings:
        made = rough(task, packing)
        # Some differ from another by names alone.
        if made is not None and not any(_are_alike(made, other) for _, other in found):
            found.append((packing, made))
    return sorted(found, key=lambda each: own_ns(each[1]))


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


def _ways(
    task: PackingTask, packing: PlacedPacking, found: Scheduled, judge: Judge
) -> Iterator[TimedSchedule]:
    """A schedule in turn and without turns; where both are held up, with ever more slack."""
    held_up_ns = _AS_PLANNED * own_ns(found)
    free = without_turns(found)
    # Which of the two goes better depends on what meets at switches.
    made = [TimedSchedule(packing, way, judge(packing, way)) for way in (found, free)]
    yield from made
    least_ns = min(each.time_ns for each in made)
    for turns in (1 / packing.depth, 2 / packing.depth):
        if least_ns <= held_up_ns:
            return
        slack = with_chunks(task, packing, found.chunks, turns)
        if slack is not None:
            yield (late := TimedSchedule(packing, slack, judge(packing, slack)))
            least_ns = min(least_ns, late.time_ns)


def _finer(task: PackingTask, made: TimedSchedule, judge: Judge) -> Iterator[TimedSchedule]:
    """As many chunks as the rate is worth, in the way that went best; with more slack if late."""
    packing, chunks = made.packing, _chunks_for_rate(task, made)
    is_dear = _is_dear(task, packing, chunks)
    for more in range(1 if is_dear else _MORE_SLACK):
        slack = made.scheduled.slack + more / packing.depth
        found = with_chunks(task, packing, chunks, slack)
        # With slack nothing is planned: it is only seen.
        is_planned = is_dear and not slack
        if found is None or (is_planned and not _keeps_promise(task, made, own_ns(found))):
            return
        is_free = not made.scheduled.has_turns and not more
        way = without_turns(found) if is_free else found
        yield (finer := TimedSchedule(packing, way, judge(packing, way)))
        if _keeps_promise(task, made, finer.time_ns):
            return


def _chunks_for_rate(task: PackingTask, made: TimedSchedule) -> int:
    """Chunks with which a packing comes as near to its rate as is worth while, as far as allowed.

    What a schedule takes beyond its rate, which fills pipelines, shrinks as chunks get more.
    """
    packing, chunks = made.packing, made.scheduled.chunks
    flows_ns = fluid_ns(task, packing)
    best_ns = float(task.collective_bytes * 10**9 / packing.bound.rate)
    # A packing that is below the best rate has so much less to lose.
    enough = max(_AT_THE_RATE + 1 - flows_ns / best_ns, _AT_ITS_RATE)
    # With so many chunks filling would take all of the flows' time once more.
    filling = chunks * (made.time_ns / flows_ns - 1)
    dear = min(math.ceil(filling / enough), most_chunks(task, packing))
    most_cheap = most_chunks(task, packing, is_cheap=True)
    cheap = min(math.ceil(filling / _AT_ITS_RATE), most_cheap)
    wanted = max(dear, cheap)
    return max(chunks, min(wanted, _AT_ONCE * chunks))


def _is_dear(task: PackingTask, packing: PlacedPacking, chunks: int) -> bool:
    """Whether it takes seconds to simulate so many chunks."""
    most = most_chunks(task, packing, is_cheap=True)
    return chunks > most


def _promised_ns(task: PackingTask, made: TimedSchedule) -> float:
    """About what a packing takes with those chunks."""
    flows_ns = fluid_ns(task, made.packing)
    part = made.scheduled.chunks / _chunks_for_rate(task, made)
    return flows_ns + (made.time_ns - flows_ns) * part


def _keeps_promise(task: PackingTask, made: TimedSchedule, finer_ns: float) -> bool:
    """Whether finer chunks gain a good part of what they promised."""
    promised_ns = made.time_ns - _promised_ns(task, made)
    gained_ns = made.time_ns - finer_ns
    return gained_ns >= _KEPT * promised_ns


def _finest_ns(task: PackingTask, made: TimedSchedule) -> float:
    """About what four times the chunks would take at least."""
    flows_ns = fluid_ns(task, made.packing)
    return finest_ns(made.time_ns, flows_ns)


def _is_too_late(task: PackingTask, made: TimedSchedule) -> bool:
    """Whether more chunks would not be faster, either, than what is reached already."""
    return task.within_ns is not None and _finest_ns(task, made) >= task.within_ns
