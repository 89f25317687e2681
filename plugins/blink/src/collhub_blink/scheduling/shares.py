"""Shares of the data that planes carry, and one schedule of them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
from collhub_packing.pipelining import Pipeline
from collhub_schedules import Chunks, Transfers, link_channels

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.scheduling.planes import Plane
from collhub_blink.scheduling.timed import TimedSchedule
from hub_core.model import Collective

_Columns = TypeVar("_Columns", Chunks, Transfers)

_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a plane carries: `part` of the data, and how."""

    plane: Plane
    part: Fraction
    made: TimedSchedule

    @property
    def time_ps(self) -> int:
        """When the plane is done, its start-up included."""
        startup_ps = self.plane.startup_ns * _PS_PER_NS
        return self.pipeline.time_ps + startup_ps

    @property
    def packing(self) -> PlacedPacking:
        """The trees."""
        return self.made.packing

    @property
    def pipeline(self) -> Pipeline:
        """The schedule of the plane alone."""
        return self.made.scheduled.pipeline

    @property
    def units(self) -> int:
        """Units into which the schedule of the plane alone divides a share of the collective."""
        return self.pipeline.collective.units_per_rank


def joined(collective: Collective, shares: Sequence[Share]) -> Pipeline:
    """One schedule of all shares, in whole units.

    Every share of the collective is cut at the same places, plane by plane.
    """
    ratios = [share.part / share.units for share in shares]
    # The least units in which those of all planes are whole.
    units = math.lcm(*(ratio.denominator for ratio in ratios))
    begin = Fraction(0)
    first_chunk = 0
    chunks: list[Chunks] = []
    transfers: list[Transfers] = []
    for share, ratio in zip(shares, ratios, strict=True):
        moved = _moved(share.pipeline, int(begin * units), int(ratio * units), units)
        chunks.append(moved)
        transfers.append(_on_plane(share, first_chunk))
        begin += share.part
        first_chunk += len(moved)
    own = shares[0].pipeline.collective
    ranks = own.unit_count // own.units_per_rank
    return Pipeline(
        replace(collective, unit_count=ranks * units),
        _concatenated(Chunks, chunks),
        _concatenated(Transfers, transfers),
        max(share.time_ps for share in shares),
    )


def _moved(pipeline: Pipeline, begin: int, scale: int, units: int) -> Chunks:
    """Chunks of a part in units of the whole.

    `scale` of these are one unit of the part, and shares, of `units` each, begin `begin` later.
    """
    chunks, share = pipeline.chunks, pipeline.collective.units_per_rank
    offsets = []
    for offset in (chunks.input_offset, chunks.output_offset):
        # Every share of the collective holds a part of every plane, one after the other.
        number, within = np.divmod(offset, share)
        offsets.append(number * units + begin + within * scale)
    return Chunks(chunks.origin, offsets[0], offsets[1], chunks.count * scale, chunks.target)


def _on_plane(share: Share, first_chunk: int) -> Transfers:
    """The transfers of a share as some of the whole, after the plane's start-up."""
    plane, transfers = share.plane, share.pipeline.transfers
    startup_ps = plane.startup_ns * _PS_PER_NS
    return replace(
        transfers,
        chunk=transfers.chunk + first_chunk,
        # Links of different planes must differ.
        link=transfers.link * plane.count + plane.number,
        start=transfers.start + startup_ps,
        finish=transfers.finish + startup_ps,
        # A message takes links of the plane that its channel is, modulo their number.
        channel=plane.number + plane.count * link_channels(transfers),
    )


def _concatenated(kind: type[_Columns], parts: Sequence[_Columns]) -> _Columns:
    """All rows of some tables, in order."""
    columns = {}
    for name in kind.__dataclass_fields__:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return kind(**columns)
