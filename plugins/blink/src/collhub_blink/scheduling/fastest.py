"""Choose the fastest of several packings, each with its best number of chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.schedules import (
    MIN_GAIN_OF_DOUBLING,
    PackingSchedule,
    TimedSchedule,
    TimeEvaluator,
    bandwidth_time_ns,
    build_schedule_with_half_the_chunks,
    find_schedule,
    planned_time_ns,
)
from collhub_blink.scheduling.switched_networks import generate_candidates
from hub_core.model import CollectiveKind
from hub_core.schedules import fastest_of

# A schedule whose planned time exceeds the best simulated time by this factor is not simulated:
# planned and simulated times do not differ that much.
_MAX_PLANNED_OVER_BEST = 1.3
# Up to this ratio of time to bandwidth time no other number of chunks is tried.
_MAX_TIME_OVER_BANDWIDTH_TIME = 1.02


def find_fastest(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    evaluate_time_ns: TimeEvaluator,
) -> TimedSchedule | None:
    """Return the fastest schedule of the packings by the evaluator's time.

    The first if times are equal; None if there is too little data for any packing. Ctrl-C ends the
    search with the best schedule so far, and is raised again without one.
    """
    return fastest_of(
        _generate_promising(task, packings, evaluate_time_ns), lambda candidate: candidate.time_ns
    )


def _generate_promising(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Choose the search: with or without switches, and only the first packing after Ctrl-C."""
    if task.budget.is_interrupted:
        # Ctrl-C has ended a proof: return the first packing at once.
        packings = packings[:1]
    if task.network.is_switchless:
        return _generate_candidates_without_switches(task, packings, evaluate_time_ns)
    return generate_candidates(task, packings, evaluate_time_ns)


def _generate_candidates_without_switches(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Yield schedules of every packing whose bandwidth time and planned time can beat the best."""
    best_ns = math.inf
    for position, packing in enumerate(packings):
        task.progress(position / len(packings), packing.method)
        if bandwidth_time_ns(task, packing) >= best_ns:
            continue
        schedule = find_schedule(task, packing)
        if schedule is None or planned_time_ns(schedule) > _MAX_PLANNED_OVER_BEST * best_ns:
            continue
        for candidate in _generate_halved_schedules(task, packing, schedule, evaluate_time_ns):
            best_ns = min(best_ns, candidate.time_ns)
            yield candidate


def _generate_halved_schedules(
    task: PackingTask,
    packing: PlacedPacking,
    schedule: PackingSchedule,
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Yield a schedule, and for an all-reduce halve its chunks as long as that is faster.

    Only an all-reduce sends up and down the trees at once; how these messages share links is known
    from the evaluator only. A requested number of chunks is not changed.
    """
    best_time_ns = evaluate_time_ns(packing, schedule)
    yield TimedSchedule(packing, schedule, best_time_ns)
    is_bidirectional = task.collective.kind is CollectiveKind.ALL_REDUCE
    if not is_bidirectional or task.chunks is not None:
        return
    while best_time_ns > _MAX_TIME_OVER_BANDWIDTH_TIME * bandwidth_time_ns(task, packing):
        # By the plan fewer chunks are slower: they help only if the evaluated time exceeds the
        # plan.
        if best_time_ns <= (1 + MIN_GAIN_OF_DOUBLING) * planned_time_ns(schedule):
            return
        halved_schedule = build_schedule_with_half_the_chunks(task, packing, schedule)
        if halved_schedule is None:
            return
        time_ns = evaluate_time_ns(packing, halved_schedule)
        yield TimedSchedule(packing, halved_schedule, time_ns)
        if time_ns >= best_time_ns:
            return
        schedule, best_time_ns = halved_schedule, time_ns
