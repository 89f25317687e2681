"""Time per step of many training steps without a flush between them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collhub_pipeline.passes import Durations, Time
from collhub_pipeline.timing import Run, Schedule, execute

# Earlier than every time that follows a start at 0.
_FAR = -(10**40)


def compute_period(schedule: Schedule, times: Durations) -> Time:
    """Return the time per step if steps follow one another without a flush.

    A device starts its next step when it has completed all its passes. The order is the same in
    every step, so the steps settle into a period: the maximum cycle mean of the longest paths from
    the first pass of each device to the end of the last pass of each device. Channels carry the
    transfers of a step after those of the step before. Cost: devices and channels x passes, plus
    their third power (Karp, Discrete Mathematics 23, 1978).
    """
    reference = Run(schedule, times)
    execute(reference, [0] * schedule.num_devices)
    channels = sorted(reference.channel)
    nodes = schedule.num_devices + len(channels)
    paths: list[list[Time]] = []
    for node in range(nodes):
        run = Run(schedule, times, origin=_FAR)
        free: list[Time] = [_FAR] * schedule.num_devices
        run.channel = dict.fromkeys(channels, _FAR)
        if node < schedule.num_devices:
            free[node] = 0
        else:
            run.channel[channels[node - schedule.num_devices]] = 0
        _, _, free = execute(run, free)
        paths.append([*free, *(run.channel[pair] for pair in channels)])
    return _find_cycle_mean(paths, _FAR // 2)


def _find_cycle_mean(paths: Sequence[Sequence[Time]], far: int) -> Time:
    """Return the maximum mean weight of a cycle; entries below `far` are no edges."""
    nodes = range(len(paths))
    walks: list[list[Time | None]] = [[0 for _ in nodes]]
    for _ in nodes:
        before = walks[-1]
        longest: list[Time | None] = []
        for end in nodes:
            ways = [
                value + paths[start][end]
                for start, value in enumerate(before)
                if value is not None and paths[start][end] > far
            ]
            longest.append(max(ways, default=None))
        walks.append(longest)
    last = walks[-1]
    means = [
        min(
            Fraction(last[node] - value) / (len(paths) - count)  # type: ignore[operator]
            for count, row in enumerate(walks[:-1])
            if (value := row[node]) is not None
        )
        for node in nodes
        if last[node] is not None
    ]
    mean = max(means)
    return int(mean) if mean.denominator == 1 else mean
