"""Several planes at once, such as NVLink and PCIe: trees on each, and shares of the data such that all end together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
from collhub_packing.pipelining import Pipeline

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.channels import Channel, balanced_shares
from collhub_blink.scheduling.fastest import TimedSchedule, fastest
from collhub_blink.scheduling.schedules import Scheduled, schedule
from hub_core.collectives import Collective
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, SynthesisRequest
from hub_core.transfers import Chunks, Transfers, link_channels
from hub_core.units import parse_time

# Shares to begin with are fractions of a denominator up to this; later ones differ by so much of themselves from the
# balance, if that takes no more than so many units of the whole for a unit of the smallest chunks.
_FINEST = 1 << 12
_TOLERANCE = 1 / 400
_MOST_UNITS = 64
_ROUNDS = 3

_Columns = TypeVar("_Columns", Chunks, Transfers)


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """Plane `number` of `count` of a topology: `task` is for its network and all data, `packings` are its candidates."""

    number: int
    count: int
    startup_ns: int
    task: PackingTask
    packings: list[PlacedPacking]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a plane carries: `part` of the data, and how."""

    plane: Plane
    part: Fraction
    made: TimedSchedule

    @property
    def packing(self) -> PlacedPacking:
        """The trees."""
        return self.made.packing

    @property
    def units(self) -> int:
        """Units into which the schedule of the plane alone divides a share of the collective."""
        return self.made.scheduled.pipeline.collective.units_per_rank


@dataclass(frozen=True, slots=True, eq=False)
class Divided:
    """Shares that make up all data, one schedule of them all, and its time."""

    shares: tuple[Share, ...]
    pipeline: Pipeline
    time_ns: int
    is_interrupted: bool = False


PipelineTimer = Callable[[Pipeline], int]
"""Time in nanoseconds of a schedule on the whole topology, start-up times included."""


def planes_of(
    request: SynthesisRequest,
    options: Options,
    packings: Callable[[PackingTask], list[PlacedPacking]],
) -> list[Plane]:
    """The planes on which all ranks reach one another. Raises `InputError` where there is none, naming a lost rank."""
    startup_ns = _startups(str(options["setup"]), request.topology.num_planes)
    planes, lost = [], []
    for number, startup in enumerate(startup_ns):
        try:
            task = PackingTask.of(
                replace(request, topology=request.topology.on_plane(number)), options
            )
        except InputError as error:
            if error.diagnostics[0].code != "unreachable":
                raise
            lost.append(error)
        else:
            planes.append(Plane(number, len(startup_ns), startup, task, packings(task)))
    if not planes:
        raise lost[0]
    return planes


def _startups(text: str, count: int) -> list[int]:
    times = [round(parse_time(part) * 1e9) for part in text.split(",")]
    if times == [0]:
        return [0] * count
    if len(times) != count:
        message = f"option setup: {len(times)} times for {count} planes"
        raise UsageError(
            message,
            cure=f"state {count} times, such as {','.join(['0ns', *['2ms'] * (count - 1)])}",
        )
    return times


def divided(planes: Sequence[Plane], whole: PackingTask, simulate: PipelineTimer) -> Divided | None:
    """The fastest division that was found; None where there is too little data for any. Ctrl-C keeps the best so far."""
    best: Divided | None = None
    try:
        for found in _divisions(planes, whole, simulate):
            if best is None or found.time_ns < best.time_ns:
                best = found
            if found.is_interrupted:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    except InputError as error:
        # A share may be too small for the stated chunks where all data on one plane, which came first, is not.
        if best is None or error.diagnostics[0].code != "size-too-small":
            raise
    return best


def _divisions(
    planes: Sequence[Plane], whole: PackingTask, simulate: PipelineTimer
) -> Iterator[Divided]:
    """All data on the plane that is fastest for it, then shares by rate and start-up, which measured times correct.

    A plane's rate is at first that of its trees, and then what it carried in the measured time: the latencies, and the
    filling of the pipeline, lower it.
    """
    size = whole.collective_bytes
    channels = [
        Channel(float(max(packing.rate for packing in plane.packings)), plane.startup_ns / 1e9)
        for plane in planes
    ]
    quickest = min(range(len(planes)), key=lambda place: channels[place].time_s(size))
    if (alone := _made(planes[quickest], Fraction(1), simulate)) is None:
        return
    yield _division(whole, [Share(planes[quickest], Fraction(1), alone)], simulate)
    parts = [
        Fraction(share / size).limit_denominator(_FINEST)
        for share in balanced_shares(size, *channels)
    ]
    made = [_made(plane, part, simulate) for plane, part in zip(planes, parts, strict=True)]
    for _ in range(_ROUNDS):
        shares = _shares(planes, parts, made)
        if len(shares) < 2:
            return
        planes = [share.plane for share in shares]
        balance = balanced_shares(size, *(_measured(share, size) for share in shares))
        parts = _in_common_units(balance, [share.units for share in shares])
        made = [_again(share, part, simulate) for share, part in zip(shares, parts, strict=True)]
        if len(again := _shares(planes, parts, made)) == len(planes):
            yield _division(whole, again, simulate)


def _shares(
    planes: Sequence[Plane], parts: Sequence[Fraction], made: Sequence[TimedSchedule | None]
) -> list[Share]:
    """The shares of the planes that can carry theirs."""
    found = zip(planes, parts, made, strict=True)
    return [Share(plane, part, each) for plane, part, each in found if each is not None]


def _division(whole: PackingTask, shares: Sequence[Share], simulate: PipelineTimer) -> Divided:
    pipeline = _joined(whole.collective, shares)
    return Divided(
        tuple(shares),
        pipeline,
        simulate(pipeline),
        any(share.made.is_interrupted for share in shares),
    )


def _made(plane: Plane, part: Fraction, simulate: PipelineTimer) -> TimedSchedule | None:
    """The fastest way to carry a part on one plane."""
    task = _task_of(plane, part)
    if task is None:
        return None

    def judge(packing: PlacedPacking, scheduled: Scheduled) -> int:
        return simulate(
            _joined(task.collective, [Share(plane, part, TimedSchedule(packing, scheduled, 0))])
        )

    return fastest(task, plane.packings, judge)


def _again(share: Share, part: Fraction, simulate: PipelineTimer) -> TimedSchedule | None:
    """Another part on the same plane, with the packing and the number of chunks of a known one."""
    task = _task_of(share.plane, part)
    chunks = share.made.scheduled.chunks
    scheduled = None if task is None else schedule(replace(task, chunks=chunks), share.packing)
    if task is None or scheduled is None:
        return None
    made = TimedSchedule(share.packing, scheduled, 0, share.made.is_interrupted)
    return replace(
        made, time_ns=simulate(_joined(task.collective, [Share(share.plane, part, made)]))
    )


def _task_of(plane: Plane, part: Fraction) -> PackingTask | None:
    """The task of carrying a part, None for less than a byte."""
    size = math.floor(plane.task.collective_bytes * part)
    return replace(plane.task, collective_bytes=size) if size else None


def _measured(share: Share, size: int) -> Channel:
    """The rate at which a plane carried its share once it had started."""
    startup_ns = share.plane.startup_ns
    return Channel(
        float(share.part * size) * 1e9 / max(1, share.made.time_ns - startup_ns), startup_ns / 1e9
    )


def _in_common_units(shares: Sequence[float], units: Sequence[int]) -> list[Fraction]:
    """About these shares, as parts of the data, such that few units of the whole make a unit of each.

    `units`: of how many units the share of each plane consists. The effort of whoever checks contents grows with the
    number of units of the whole.
    """
    width = [share / count for share, count in zip(shares, units, strict=True)]
    least = min((each for each in width if each), default=1.0)
    for base in range(1, _MOST_UNITS + 1):
        scales = [round(base * each / least) for each in width]
        total = sum(scale * count for scale, count in zip(scales, units, strict=True))
        parts = [Fraction(scale * count, total) for scale, count in zip(scales, units, strict=True)]
        if all(
            abs(part * sum(shares) - share) <= _TOLERANCE * share
            for part, share in zip(parts, shares, strict=True)
        ):
            break
    return parts


def _joined(collective: Collective, shares: Sequence[Share]) -> Pipeline:
    """One schedule of all shares, in whole units: every share of the collective is cut at the same places, plane by plane."""
    pipelines = [share.made.scheduled.pipeline for share in shares]
    ratios = [share.part / share.units for share in shares]
    units = math.lcm(*(ratio.denominator for ratio in ratios))
    ranks = pipelines[0].collective.unit_count // pipelines[0].collective.units_per_rank
    begin = Fraction(0)
    chunks: list[Chunks] = []
    transfers: list[Transfers] = []
    time_ps = 0
    for share, pipeline, ratio in zip(shares, pipelines, ratios, strict=True):
        moved = _moved(pipeline, int(begin * units), int(ratio * units), units)
        transfers.append(
            _on_plane(pipeline.transfers, share.plane, sum(len(before) for before in chunks))
        )
        chunks.append(moved)
        begin += share.part
        time_ps = max(time_ps, pipeline.time_ps + share.plane.startup_ns * 1000)
    joined = replace(collective, unit_count=ranks * units)
    return Pipeline(
        joined, _concatenated(Chunks, chunks), _concatenated(Transfers, transfers), time_ps
    )


def _moved(pipeline: Pipeline, begin: int, scale: int, units: int) -> Chunks:
    """Chunks of a part in units of the whole: `scale` of these are one, and shares begin `begin` later."""
    chunks, share = pipeline.chunks, pipeline.collective.units_per_rank
    offsets = []
    for offset in (chunks.input_offset, chunks.output_offset):
        number, within = np.divmod(offset, share)
        offsets.append(number * units + begin + within * scale)
    return Chunks(chunks.origin, offsets[0], offsets[1], chunks.count * scale, chunks.target)


def _on_plane(transfers: Transfers, plane: Plane, first_chunk: int) -> Transfers:
    startup_ps = plane.startup_ns * 1000
    return replace(
        transfers,
        chunk=transfers.chunk + first_chunk,
        # Links of different planes must differ.
        link=transfers.link * plane.count + plane.number,
        start=transfers.start + startup_ps,
        finish=transfers.finish + startup_ps,
        channel=plane.number + plane.count * link_channels(transfers),
    )


def _concatenated(kind: type[_Columns], parts: Sequence[_Columns]) -> _Columns:
    names = kind.__dataclass_fields__
    return kind(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
