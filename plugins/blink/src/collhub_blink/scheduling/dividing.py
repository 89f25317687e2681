"""Divide the data among several planes, with trees on each, so that all planes finish together.

Shares follow from rates and start-up times: the balance of Blink (Wang et al., MLSys 2020, section
3.5) for any number of channels, each usable after a set-up time. They are then corrected by
simulated times, which include latencies and the filling of pipelines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collhub_packing.pipelining import Pipeline

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.planes import Plane, Share, join_shares
from collhub_blink.scheduling.schedules import (
    PackingSchedule,
    TimedSchedule,
    build_schedule,
    remove_link_order,
)
from collhub_blink.scheduling.switched_networks import find_fastest
from hub_core.model import InputError, UsageError
from hub_core.schedules import fastest_of

# Initial shares are fractions with denominators up to this.
_MAX_DENOMINATOR = 1 << 12
# Corrected shares may differ from the exact balance by this fraction of themselves, if the smallest
# chunk's unit then has at most this many common units.
_TOLERANCE = 1 / 400
_MAX_UNITS = 64
_CORRECTION_ROUNDS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Shares of the planes that add up to all data, their joint schedule, and its time in ns.

    `is_interrupted`: Ctrl-C cut the search of a share short.
    """

    shares: tuple[Share, ...]
    pipeline: Pipeline
    time_ns: int
    is_interrupted: bool = False


PipelineTimer = Callable[[Pipeline], int]
"""Function that returns the time in ns of a schedule on the full topology, start-up times included.
"""


def find_best_division(
    planes: Sequence[Plane],
    full_task: PackingTask,
    time_ns: PipelineTimer,
) -> Division | None:
    """Return the fastest division found; None if there is too little data for any.

    `full_task`: the task for all planes together. Ctrl-C returns the best so far.
    """
    return fastest_of(
        _generate_divisions(planes, full_task, time_ns), lambda division: division.time_ns
    )


def _generate_divisions(
    planes: Sequence[Plane],
    full_task: PackingTask,
    time_ns: PipelineTimer,
) -> Iterator[Division]:
    """Yield ways to divide the data among planes: all on the fastest plane, then several planes.

    The fastest plane has the smallest start-up time plus size / rate of its best packing; of
    equal ones the first. The first division has all data on this plane, with the fastest
    schedule of `_find_fastest_on_plane`. If there is none (too little data), nothing is
    yielded. Then the divisions of `_generate_balanced_divisions` follow, at most 3; they do not
    depend on the first one.

    An `InputError` `size-too-small` means that data are too few for the requested number of
    chunks. If the balanced divisions raise it, the generator ends without an error. If the
    first division raises it, it passes through. All other errors pass through. Raises
    `ValueError` without planes. `full_task`: the task for all planes together. `time_ns`
    returns the time of a schedule in ns.
    """
    channels = [
        Channel(float(max(packing.rate for packing in plane.packings)), plane.startup_ns / 1e9)
        for plane in planes
    ]
    # Put all data on the plane that is fastest by rate and start-up time.
    times_s = [channel.time_s(full_task.collective_bytes) for channel in channels]
    fastest_plane = planes[min(range(len(planes)), key=times_s.__getitem__)]
    schedule = _find_fastest_on_plane(fastest_plane, Fraction(1), time_ns)
    if schedule is None:
        return
    yield _build_division(full_task, [Share(fastest_plane, Fraction(1), schedule)], time_ns)
    try:
        yield from _generate_balanced_divisions(planes, channels, full_task, time_ns)
    except InputError as error:
        # A share may be too small for the requested chunks although the full data on one plane is
        # not.
        if error.diagnostics[0].code != "size-too-small":
            raise


def _generate_balanced_divisions(
    planes: Sequence[Plane],
    channels: Sequence[Channel],
    full_task: PackingTask,
    time_ns: PipelineTimer,
) -> Iterator[Division]:
    """Yield divisions of the data such that all planes finish at about the same time.

    `balanced_shares` gives the initial shares from `channels` (best rate and start-up time of each
    of `planes`). Each plane gets the fastest schedule for its share by `time_ns`, as if it were the
    only plane. This division is not yielded. Then 3 rounds (`_CORRECTION_ROUNDS`) follow:

    1. Planes without a schedule are dropped, e.g. with a share below one byte. With fewer than two
       planes the generator ends.
    2. The rate of a plane becomes its share / its time without start-up (at least 1 ns).
       `balanced_shares` gives new shares, rounded to fractions with the sum 1, and
       `_reschedule_share` schedules them.
    3. The division is yielded, in the order of `planes`, if every plane has a schedule.

    On a network without switches, raises `InputError` (`size-too-small`) if an initial share is too
    small for the requested number of chunks. Other errors of scheduling pass through.
    """
    size = full_task.collective_bytes
    shares_bytes = balanced_shares(size, *channels)
    # Simple fractions suffice: the first shares are corrected anyway.
    fractions = [
        Fraction(share / size).limit_denominator(_MAX_DENOMINATOR) for share in shares_bytes
    ]
    schedules = [
        _find_fastest_on_plane(plane, fraction, time_ns)
        for plane, fraction in zip(planes, fractions, strict=True)
    ]
    for _ in range(_CORRECTION_ROUNDS):
        shares = _collect_shares(planes, fractions, schedules)
        # A division with a single plane was already yielded.
        if len(shares) < 2:
            return
        planes = [share.plane for share in shares]
        measured: list[Channel] = []
        for share in shares:
            startup_ns = share.plane.startup_ns
            # Times are rounded, and a rate must be finite.
            sending_ns = max(1, share.timed_schedule.time_ns - startup_ns)
            rate = float(share.part * size) * 1e9 / sending_ns
            measured.append(Channel(rate, startup_ns / 1e9))
        shares_bytes = balanced_shares(size, *measured)
        fractions = _round_to_common_units(shares_bytes, [share.units for share in shares])
        schedules = [
            _reschedule_share(share, fraction, time_ns)
            for share, fraction in zip(shares, fractions, strict=True)
        ]
        corrected = _collect_shares(planes, fractions, schedules)
        # If a plane cannot carry its new share, the remaining shares are less than the full data.
        if len(corrected) == len(planes):
            yield _build_division(full_task, corrected, time_ns)


def _collect_shares(
    planes: Sequence[Plane],
    parts: Sequence[Fraction],
    schedules: Sequence[TimedSchedule | None],
) -> list[Share]:
    """Collect the shares of the planes that have a schedule."""
    return [
        Share(plane, part, schedule)
        for plane, part, schedule in zip(planes, parts, schedules, strict=True)
        if schedule is not None
    ]


def _build_division(
    full_task: PackingTask, shares: Sequence[Share], time_ns: PipelineTimer
) -> Division:
    """Join the shares to one schedule in which all planes work at the same time, and time it.

    The time is `time_ns(schedule)` in ns, with start-up times. The shares keep their order.
    The division is marked as interrupted if the search of one of the shares was.
    """
    pipeline = join_shares(full_task.collective, shares)
    is_interrupted = any(share.timed_schedule.is_interrupted for share in shares)
    return Division(tuple(shares), pipeline, time_ns(pipeline), is_interrupted)


def _find_fastest_on_plane(
    plane: Plane, part: Fraction, time_ns: PipelineTimer
) -> TimedSchedule | None:
    """Return the fastest schedule for a fraction `part` of the data if only this plane is used.

    The bytes are `part` times the data, rounded down. All packings of the plane compete
    (`find_fastest`), by the time in ns that `time_ns` returns for the schedule on the full
    topology, start-up included. Of equal times the first candidate is returned.

    None if less than one byte remains, or if the data are too few for every packing. But if the
    task requests a number of chunks and the network has no switches, chunks below one byte
    raise `InputError` `size-too-small`. Ctrl-C returns the best schedule so far, marked as
    interrupted; without one `KeyboardInterrupt` is raised.
    """
    task = _build_task(plane, part)
    if task is None:
        return None

    def evaluate_time_ns(packing: PlacedPacking, schedule: PackingSchedule) -> int:
        """Return the time in ns of a schedule for `part` of the data, on `plane` only.

        It is the time of the enclosing `time_ns`, which includes the start-up time of `plane`.
        """
        share = Share(plane, part, TimedSchedule(packing, schedule, 0))
        return _evaluate_share(share, time_ns).time_ns

    return find_fastest(task, plane.packings, evaluate_time_ns)


def _reschedule_share(
    share: Share,
    part: Fraction,
    time_ns: PipelineTimer,
) -> TimedSchedule | None:
    """Schedule another fraction of the data on the plane of a share, in the same way as the share.

    The bytes are `part` times the data, rounded down. The new schedule has the packing and the
    slack of the share. Its number of chunks is that of the share, rounded down to a power of
    two: 6 becomes 4. It has an order of messages on links only if the schedule of the share has
    one. Its time is that of `time_ns`, in ns, without any other plane. It is marked as
    interrupted if the share is.

    None if less than one byte remains, or if a chunk would be below one byte. Other errors of
    scheduling pass through. `share` is not changed.
    """
    task = _build_task(share.plane, part)
    if task is None:
        return None
    # Powers of two keep the common units few, in which the contents are checked.
    known = share.timed_schedule.schedule
    chunks = 1 << (known.chunks.bit_length() - 1)
    schedule = build_schedule(task, share.packing, chunks, known.slack)
    if schedule is None:
        return None
    if not known.has_link_order:
        schedule = remove_link_order(schedule)
    is_interrupted = share.timed_schedule.is_interrupted
    untimed = TimedSchedule(share.packing, schedule, 0, is_interrupted)
    return _evaluate_share(Share(share.plane, part, untimed), time_ns)


def _evaluate_share(share: Share, time_ns: PipelineTimer) -> TimedSchedule:
    """Return the schedule of a share with its time in ns if no other plane is in use.

    The time is that of `time_ns`, which includes the start-up time of the plane. It
    replaces the time in the schedule; `share` is not changed.
    """
    pipeline = join_shares(share.plane.task.collective, [share])
    return replace(share.timed_schedule, time_ns=time_ns(pipeline))


def _build_task(plane: Plane, part: Fraction) -> PackingTask | None:
    """Return a copy of the plane's task with only the fraction `part` (0 to 1) of its data.

    The bytes are rounded down; None if less than one byte remains. All other settings are
    kept.
    """
    size = math.floor(plane.task.collective_bytes * part)
    return replace(plane.task, collective_bytes=size) if size else None


def _round_to_common_units(shares: Sequence[float], units: Sequence[int]) -> list[Fraction]:
    """Round shares in bytes to fractions of the data with few common units; their sum is 1.

    `units`: number of units in the schedule of each share, at least 1. For b = 1, 2, ..., 64
    (`_MAX_UNITS`), the smallest unit (share / units) above 0 is divided into b common units. Each
    other unit gets the nearest number of common units (ties to even). A fraction is a share's
    common units, divided by their sum.

    The first b is used with which every fraction differs from its share of the total by at most
    1/400 (`_TOLERANCE`) of the share. If there is none, b = 64 is used. A share of 0 gives 0.
    Raises `ZeroDivisionError` if all shares are 0 or there are none.
    """
    widths = [share / count for share, count in zip(shares, units, strict=True)]
    smallest = min((width for width in widths if width), default=1.0)
    size = sum(shares)
    for base in range(1, _MAX_UNITS + 1):
        # The smallest unit has `base` common units, the other ones the nearest number.
        scales = [round(base * width / smallest) for width in widths]
        weights = [scale * count for scale, count in zip(scales, units, strict=True)]
        total = sum(weights)
        parts = [Fraction(weight, total) for weight in weights]
        errors = [abs(part * size - share) for part, share in zip(parts, shares, strict=True)]
        if all(error <= _TOLERANCE * share for error, share in zip(errors, shares, strict=True)):
            break
    return parts


@dataclass(frozen=True, slots=True)
class Channel:
    """Rate of the trees over one kind of link, and the time until that link is usable.

    The set-up may be, for example, switching peer access. Raises `UsageError` for a rate that is
    not positive and for a negative time.
    """

    rate_bytes_per_s: float
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `UsageError` for a rate that is not positive and for a negative set-up time."""
        # The comparisons are negated so that NaN is refused as well.
        if not self.rate_bytes_per_s > 0 or not self.setup_s >= 0:
            message = (
                f"a channel of {self.rate_bytes_per_s} bytes/s with a set-up of {self.setup_s} s"
            )
            raise UsageError(message, cure="give a positive rate and no negative time")

    def time_s(self, share_bytes: float) -> float:
        """Return the time in seconds to send a share: set-up time plus bytes divided by the rate.

        An empty share takes 0 s, because the channel is then not set up.
        """
        if not share_bytes:
            return 0.0
        return self.setup_s + share_bytes / self.rate_bytes_per_s


def balanced_shares(size_bytes: float, *channels: Channel) -> tuple[float, ...]:
    """Divide bytes among channels so that all channels with a share finish at the same time.

    Returns one share in bytes per channel, in the order of `channels`. Shares are floats of
    at least 0 that add up to `size_bytes` except for rounding. Raises `ValueError` without
    channels.

    - Channels are added by ascending set-up time; of equal ones the first argument comes
      first.
    - A channel is left out, with share 0, if it is ready only when the channels before it
      have sent all bytes, or at the same moment. All later channels are then left out too.
    - An added channel gets (T - set-up) * rate bytes, where T is the common finish time. The
      first added channel gets the rest.
    """
    # The shortest set-up delays all channels equally and does not affect the balance.
    start_s = min(channel.setup_s for channel in channels)
    delays_s = [channel.setup_s - start_s for channel in channels]
    rate = head_start = 0.0
    chosen: list[int] = []
    for number in sorted(range(len(channels)), key=delays_s.__getitem__):
        # The chosen channels have sent everything by the time this channel is ready.
        if chosen and delays_s[number] * rate >= size_bytes + head_start:
            break
        chosen.append(number)
        rate += channels[number].rate_bytes_per_s
        head_start += channels[number].rate_bytes_per_s * delays_s[number]
    finish_s = (size_bytes + head_start) / rate
    shares = [0.0] * len(channels)
    # The first channel takes the rounding remainder, so that the shares add up to the size.
    for number in chosen[1:]:
        share = (finish_s - delays_s[number]) * channels[number].rate_bytes_per_s
        # Rounding may give slightly less than 0 or more than the size.
        shares[number] = min(max(share, 0.0), size_bytes)
    shares[chosen[0]] = max(size_bytes - sum(shares), 0.0)
    return tuple(shares)


def combined_rate(size_bytes: float, *channels: Channel) -> float:
    """Return the rate in bytes/s at which channels together carry `size_bytes` (more than 0).

    It is the size divided by the finish time of the slowest channel, including its set-up,
    with the shares of `balanced_shares`. Raise `ValueError` without channels.
    """
    shares = balanced_shares(size_bytes, *channels)
    times_s = [channel.time_s(share) for channel, share in zip(channels, shares, strict=True)]
    return size_bytes / max(times_s)
