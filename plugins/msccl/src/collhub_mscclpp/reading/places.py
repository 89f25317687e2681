"""Places of memory as steps name them: buffer and offset in units, from ranges in cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.lowering import Ranges
from collhub_mscclpp.checking.memory import PlanMemory
from hub_core.columns import Int64Array
from hub_core.model import Buffer


@dataclass(frozen=True, slots=True)
class Place:
    """The beginning of a range: rank, buffer and offset in units, and the cell that it is."""

    rank: int
    buffer: int
    offset: int
    cell: int


@dataclass(frozen=True, slots=True, eq=False)
class PlaceTable:
    """Places of all ranges, by row; `scratch_units`: int64[ranks], of the forms that are used."""

    places: tuple[Place, ...]
    scratch_units: Int64Array


def places_of(
    memory: PlanMemory,
    ranges: Ranges,
) -> PlaceTable:
    """Places in one launch: the scratch is its plain form, then its packets, if they are used."""
    is_scratch = ranges.buffer == Buffer.SCRATCH
    is_packet = ranges.is_packet == 1
    ranks = len(memory.half)
    plain = np.zeros(ranks, np.int64)
    packets = np.zeros(ranks, np.int64)
    plain_ranks = ranges.rank[is_scratch & ~is_packet]
    packet_ranks = ranges.rank[is_scratch & is_packet]
    plain[plain_ranks] = memory.half[plain_ranks]
    packets[packet_ranks] = memory.half[packet_ranks]
    offset = ranges.base - memory.layout.base[ranges.rank, ranges.buffer]
    # In the memory of a check the packets lie behind all halves of the plain form.
    moved = plain[ranges.rank] - memory.halves * memory.half[ranges.rank]
    offset = offset + np.where(is_packet & is_scratch, moved, 0)
    columns = (ranges.rank, ranges.buffer, offset, ranges.base)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return PlaceTable(tuple(Place(*row) for row in rows), plain + packets)
