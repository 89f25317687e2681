"""Several planes at once, such as NVLink and PCIe: trees on each, and shares of the data such that all end together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
from collhub_packing.pipelining import Pipeline

from collhub_blink.channels import Channel, balanced_shares
from collhub_blink.packing import Packing
from collhub_blink.schedules import Scheduled, schedule
from collhub_blink.search import Made, fastest
from collhub_blink.task import Task
from hub_core.collectives import Collective
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, SynthesisRequest
from hub_core.transfers import Chunks, Transfers, link_channels
from hub_core.units import parse_time

__all__ = ["Divided", "Plane", "Share", "divided", "planes_of"]

# Shares are whole multiples of so small a part of the data.
_PARTS = 1 << 12
_ROUNDS = 3

_Columns = TypeVar("_Columns", Chunks, Transfers)


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """Plane `number` of `count` of a topology: `task` is for its network and all data, `packings` are its candidates."""

    number: int
    count: int
    startup_ns: int
    task: Task
    packings: list[Packing]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a plane carries: `part` of the data, and how."""

    plane: Plane
    part: Fraction
    packing: Packing
    scheduled: Scheduled


@dataclass(frozen=True, slots=True, eq=False)
class Divided:
    """Shares that make up all data, one schedule of them all, and its time."""

    shares: tuple[Share, ...]
    pipeline: Pipeline
    time_ns: int
    is_interrupted: bool = False


Simulate = Callable[[Pipeline], int]
"""Time in nanoseconds of a schedule on the whole topology, start-up times included."""


def planes_of(request: SynthesisRequest, options: Options, packings: Callable[[Task], list[Packing]]) -> list[Plane]:
    """The planes on which all ranks reach one another. Raises `InputError` where there is none, naming a lost rank."""
    startup_ns = _startups(str(options["setup"]), request.topology.num_planes)
    planes, lost = [], []
    for number, startup in enumerate(startup_ns):
        try:
            task = Task.of(replace(request, topology=request.topology.on_plane(number)), options)
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
        raise UsageError(message, cure=f"state {count} times, such as {','.join(['0ns', *['2ms'] * (count - 1)])}")
    return times


def divided(planes: Sequence[Plane], whole: Task, simulate: Simulate) -> Divided | None:
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
    return best


def _divisions(planes: Sequence[Plane], whole: Task, simulate: Simulate) -> Iterator[Divided]:
    """All data on the plane that is fastest for it, then shares by rate and start-up, which measured times correct.

    What a plane takes longer than its bytes at its rate - the latencies, and the filling of the pipeline - counts as
    start-up the next time.
    """
    size = whole.collective_bytes
    channels = [Channel(float(max(packing.rate for packing in plane.packings)), plane.startup_ns / 1e9) for plane in planes]
    quickest = min(range(len(planes)), key=lambda place: channels[place].time_s(size))
    made: list[Made | None] = [None] * len(planes)
    parts = [Fraction(int(place == quickest)) for place in range(len(planes))]
    for number in range(1 + _ROUNDS):
        for place, plane in enumerate(planes):
            made[place] = _made(plane, parts[place], made[place] if number > 1 else None, simulate)
        shares = [
            Share(plane, part, found.packing, found.scheduled)
            for plane, part, found in zip(planes, parts, made, strict=True)
            if found is not None
        ]
        if sum(share.part for share in shares) < 1:
            return
        pipeline = _joined(whole.collective, shares)
        yield Divided(tuple(shares), pipeline, simulate(pipeline), any(found.is_interrupted for found in made if found))
        if number:
            channels = [_measured(found, part * size) or channel for channel, found, part in zip(channels, made, parts, strict=True)]
        previous, parts = parts, _parts(size, channels)
        if parts == previous:
            return


def _made(plane: Plane, part: Fraction, known: Made | None, simulate: Simulate) -> Made | None:
    """The fastest way to carry a part on one plane, with the packing and the number of chunks of `known` if given."""
    task = replace(plane.task, collective_bytes=math.floor(plane.task.collective_bytes * part))
    if not task.collective_bytes:
        return None

    def judge(packing: Packing, scheduled: Scheduled) -> int:
        return simulate(_joined(task.collective, [Share(plane, part, packing, scheduled)]))

    if known is None:
        return fastest(task, plane.packings, judge)
    scheduled = schedule(replace(task, chunks=known.scheduled.chunks), known.packing)
    return None if scheduled is None else Made(known.packing, scheduled, judge(known.packing, scheduled))


def _measured(made: Made | None, share_bytes: Fraction) -> Channel | None:
    if made is None:
        return None
    rate = float(made.packing.rate)
    return Channel(rate, max(0.0, made.time_ns / 1e9 - float(share_bytes) / rate))


def _parts(size: int, channels: Sequence[Channel]) -> list[Fraction]:
    """Balanced shares as parts of the data, rounded; the largest takes what is left."""
    shares = balanced_shares(size, *channels)
    parts = [Fraction(round(share * _PARTS / size), _PARTS) for share in shares]
    largest = parts.index(max(parts))
    parts[largest] += 1 - sum(parts)
    return parts


def _joined(collective: Collective, shares: Sequence[Share]) -> Pipeline:
    """One schedule of all shares, in whole units: every share of the collective is cut at the same places, plane by plane."""
    pipelines = [share.scheduled.pipeline for share in shares]
    ratios = [share.part / pipeline.collective.units_per_rank for share, pipeline in zip(shares, pipelines, strict=True)]
    units = math.lcm(*(ratio.denominator for ratio in ratios))
    ranks = pipelines[0].collective.unit_count // pipelines[0].collective.units_per_rank
    begin = Fraction(0)
    chunks, transfers, time_ps = [], [], 0
    for share, pipeline, ratio in zip(shares, pipelines, ratios, strict=True):
        moved = _moved(pipeline, int(begin * units), int(ratio * units), units)
        transfers.append(_on_plane(pipeline.transfers, share.plane, sum(map(len, chunks))))
        chunks.append(moved)
        begin += share.part
        time_ps = max(time_ps, pipeline.time_ps + share.plane.startup_ns * 1000)
    joined = replace(collective, unit_count=ranks * units)
    return Pipeline(joined, _concatenated(Chunks, chunks), _concatenated(Transfers, transfers), time_ps)


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
