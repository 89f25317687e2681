"""Several planes at once: trees on each, and shares of the data such that all end together.

Shares follow from rates and start-up times (Blink, section 3.5, see `channels`), and are then
corrected by measured times, which hold latencies and the filling of pipelines as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collhub_packing.pipelining import Pipeline
from collhub_schedules import fastest_of

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.channels import Channel, balanced_shares
from collhub_blink.scheduling.fastest import fastest
from collhub_blink.scheduling.planes import Plane
from collhub_blink.scheduling.schedules import Scheduled, with_chunks, without_turns
from collhub_blink.scheduling.shares import Share, joined
from collhub_blink.scheduling.timed import TimedSchedule
from hub_core.model import InputError

# Shares to begin with are fractions of a denominator up to this.
_FINEST = 1 << 12
# Later ones differ by so much of themselves from the balance ...
_TOLERANCE = 1 / 400
# ... if that takes no more than so many units of the whole for a unit of the smallest chunks.
_MOST_UNITS = 64
_ROUNDS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Divided:
    """Shares that make up all data, one schedule of them all, and its time."""

    shares: tuple[Share, ...]
    pipeline: Pipeline
    time_ns: int
    is_interrupted: bool = False


PipelineTimer = Callable[[Pipeline], int]
"""Time in nanoseconds of a schedule on the whole topology, start-up times included."""


def divided(
    planes: Sequence[Plane],
    whole: PackingTask,
    time_ns: PipelineTimer,
) -> Divided | None:
    """The fastest division that was found; None where there is too little data for any.

    Ctrl-C keeps the best so far.
    """
    return fastest_of(_divisions(planes, whole, time_ns), lambda found: found.time_ns)


def _divisions(
    planes: Sequence[Plane],
    whole: PackingTask,
    time_ns: PipelineTimer,
) -> Iterator[Divided]:
    """All data on the plane that is fastest for it, then shares of several planes."""
    channels = [_channel(plane) for plane in planes]
    alone = _on_quickest(planes, channels, whole.collective_bytes, time_ns)
    if alone is None:
        return
    yield _division(whole, [alone], time_ns)
    try:
        yield from _balanced(planes, channels, whole, time_ns)
    except InputError as error:
        # A share may be too small for the stated chunks where all data on one plane is not.
        if error.diagnostics[0].code != "size-too-small":
            raise


def _balanced(
    planes: Sequence[Plane],
    channels: Sequence[Channel],
    whole: PackingTask,
    time_ns: PipelineTimer,
) -> Iterator[Divided]:
    """Shares by rate and start-up, which measured times correct.

    A plane's rate is at first that of its trees, and then what it carried in the measured time: the
    latencies, and the filling of the pipeline, lower it.
    """
    size = whole.collective_bytes
    balance = balanced_shares(size, *channels)
    # Simple fractions, since the first shares are corrected anyway.
    parts = [Fraction(share / size).limit_denominator(_FINEST) for share in balance]
    made = [_made(plane, part, time_ns) for plane, part in zip(planes, parts, strict=True)]
    for _ in range(_ROUNDS):
        shares = _shares(planes, parts, made)
        # One plane alone was the first division.
        if len(shares) < 2:
            return
        planes = [share.plane for share in shares]
        balance = balanced_shares(size, *(_measured(share, size) for share in shares))
        parts = _in_common_units(balance, [share.units for share in shares])
        made = [_again(share, part, time_ns) for share, part in zip(shares, parts, strict=True)]
        again = _shares(planes, parts, made)
        # Else a plane cannot carry its new share, and the rest is not all of the data.
        if len(again) == len(planes):
            yield _division(whole, again, time_ns)


def _channel(plane: Plane) -> Channel:
    """The plane by the rate of its best packing."""
    rate = max(packing.rate for packing in plane.packings)
    return Channel(float(rate), plane.startup_ns / 1e9)


def _on_quickest(
    planes: Sequence[Plane],
    channels: Sequence[Channel],
    size: int,
    time_ns: PipelineTimer,
) -> Share | None:
    """All data on the plane that is fastest by itself."""
    times_s = [channel.time_s(size) for channel in channels]
    quickest = planes[min(range(len(planes)), key=times_s.__getitem__)]
    made = _made(quickest, Fraction(1), time_ns)
    return None if made is None else Share(quickest, Fraction(1), made)


def _shares(
    planes: Sequence[Plane],
    parts: Sequence[Fraction],
    made: Sequence[TimedSchedule | None],
) -> list[Share]:
    """The shares of the planes that can carry theirs."""
    found = zip(planes, parts, made, strict=True)
    return [Share(plane, part, each) for plane, part, each in found if each is not None]


def _division(whole: PackingTask, shares: Sequence[Share], time_ns: PipelineTimer) -> Divided:
    """Shares with their common schedule."""
    pipeline = joined(whole.collective, shares)
    is_interrupted = any(share.made.is_interrupted for share in shares)
    return Divided(tuple(shares), pipeline, time_ns(pipeline), is_interrupted)


def _made(plane: Plane, part: Fraction, time_ns: PipelineTimer) -> TimedSchedule | None:
    """The fastest way to carry a part on one plane."""
    task = _task_of(plane, part)
    if task is None:
        return None

    def judge(packing: PlacedPacking, scheduled: Scheduled) -> int:
        share = Share(plane, part, TimedSchedule(packing, scheduled, 0))
        return _timed(share, time_ns).time_ns

    return fastest(task, plane.packings, judge)


def _again(
    share: Share,
    part: Fraction,
    time_ns: PipelineTimer,
) -> TimedSchedule | None:
    """Another part on the same plane, with the packing, chunks and turns of a known one."""
    task = _task_of(share.plane, part)
    if task is None:
        return None
    # Powers of two have small common units, in which the contents are checked.
    known = share.made.scheduled
    chunks = 1 << (known.chunks.bit_length() - 1)
    scheduled = with_chunks(task, share.packing, chunks, known.slack)
    if scheduled is None:
        return None
    if not known.has_turns:
        scheduled = without_turns(scheduled)
    untimed = TimedSchedule(share.packing, scheduled, 0, share.made.is_interrupted)
    return _timed(Share(share.plane, part, untimed), time_ns)


def _timed(share: Share, time_ns: PipelineTimer) -> TimedSchedule:
    """The schedule of a share with the time that it takes alone."""
    pipeline = joined(share.plane.task.collective, [share])
    return replace(share.made, time_ns=time_ns(pipeline))


def _task_of(plane: Plane, part: Fraction) -> PackingTask | None:
    """The task of carrying a part, None for less than a byte."""
    size = math.floor(plane.task.collective_bytes * part)
    return replace(plane.task, collective_bytes=size) if size else None


def _measured(share: Share, size: int) -> Channel:
    """The rate at which a plane carried its share once it had started."""
    startup_ns = share.plane.startup_ns
    # Times are rounded, and a rate must be finite.
    sending_ns = max(1, share.made.time_ns - startup_ns)
    return Channel(float(share.part * size) * 1e9 / sending_ns, startup_ns / 1e9)


def _in_common_units(shares: Sequence[float], units: Sequence[int]) -> list[Fraction]:
    """About these shares, as parts of the data, such that few units of the whole make one of each.

    `units`: of how many units the share of each plane consists. The effort of whoever checks
    contents grows with the number of units of the whole.
    """
    widths = [share / count for share, count in zip(shares, units, strict=True)]
    least = min((width for width in widths if width), default=1.0)
    for base in range(1, _MOST_UNITS + 1):
        # The least share has `base` units, and the others as many as come nearest.
        scales = [round(base * width / least) for width in widths]
        parts = _parts_of(scales, units)
        if _are_near(parts, shares):
            break
    return parts


def _parts_of(scales: Sequence[int], units: Sequence[int]) -> list[Fraction]:
    """The parts of shares of so many units each, where one of theirs is `scale` of the whole."""
    weights = [scale * count for scale, count in zip(scales, units, strict=True)]
    total = sum(weights)
    return [Fraction(weight, total) for weight in weights]


def _are_near(parts: Sequence[Fraction], shares: Sequence[float]) -> bool:
    """Whether parts of the whole differ from shares by no more than is tolerated."""
    total = sum(shares)
    differences = [abs(part * total - share) for part, share in zip(parts, shares, strict=True)]
    return all(
        difference <= _TOLERANCE * share
        for difference, share in zip(differences, shares, strict=True)
    )
