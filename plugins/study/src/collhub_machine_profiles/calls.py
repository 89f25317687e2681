"""Calls of collectives, measured or planned, and tables of their measured times.

A table groups points, interpolates between knots, and knows the error of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from collhub_machine_profiles.gpus import machine_label
from hub_core.model import format_count
from hub_core.plugin_api import Library, Measurement


class CollectiveCall(Protocol):
    """Call of a collective; `Measurement` and `PlannedCall` have these fields.

    `size_bytes` is the full buffer. A library without a version is any version.
    """

    @property
    def collective(self) -> str:
        """Name of the collective, such as `all-gather`."""

    @property
    def ranks(self) -> int:
        """Number of ranks on all nodes together."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the full buffer."""

    @property
    def library(self) -> Library:
        """Library that runs the call."""

    @property
    def dtype(self) -> str:
        """`int8` for sums of 8-bit integers, "" for all else."""


ANY_NCCL = Library("NCCL")
"""NCCL of any version."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Call whose time is to be predicted, by default by any version of NCCL."""

    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    library: Library = ANY_NCCL
    dtype: str = ""


def format_ranks(ranks: int, nodes: int) -> str:
    """Return `8 ranks on 1 node` or `16 ranks on 2 nodes`."""
    return f"{ranks} ranks on {format_count(nodes, 'node')}"


def may_be_equal(first: Library, second: Library) -> bool:
    """Return whether two libraries can be the same.

    Name and variant must be equal. Versions must be equal too, unless one of them is unknown
    (empty).
    """
    is_same = (first.name, first.variant) == (second.name, second.variant)
    return is_same and (not first.version or not second.version or first.version == second.version)


def merge_calls(points: Iterable[Measurement]) -> list[Measurement]:
    """Combine records of single ranks to calls, and equal calls to one point with the median time.

    Points with an empty `call` are returned unchanged, first and in their order. Other points
    are records of ranks, which are combined in two steps:

    1. Records with equal `call`, collective and size are one call. Its record is the one with
       the minimum time (of equal ones the first), because the time of a rank includes waiting
       for late ranks.
    2. Calls with equal collective, ranks, nodes, size, library and machine become one point. It
       has the median of their times in us (the mean of the middle two for an even number) and
       an empty `call`. Its other fields, such as place and data type, are those of the first
       call; they are not compared.

    These points are in the order of their first records.
    """
    single: list[Measurement] = []
    fastest: dict[tuple[str, str, int], Measurement] = {}
    for point in points:
        if not point.call:
            single.append(point)
            continue
        key = (point.call, point.collective, point.size_bytes)
        if key not in fastest or point.time_us < fastest[key].time_us:
            fastest[key] = point
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for point in fastest.values():
        same = (point.collective, point.ranks, point.nodes, point.size_bytes, point.library)
        groups.setdefault((*same, point.machine), []).append(point)
    for group in groups.values():
        median_us = float(median([point.time_us for point in group]))
        single.append(replace(group[0], time_us=median_us, call=""))
    return single


FloatArray = NDArray[np.float64]

FEW_REPEATS = 3
_MIN_KNOTS_FOR_ERROR = 4


@dataclass(frozen=True, slots=True)
class MedianTimes:
    """Medians of measured times, in microseconds, by size of the full vector in bytes.

    Sizes increase strictly. `dtype` is "int8" for sums of 8-bit integers and "" for all else.
    `repeats` is the least number of measurements of a knot.
    """

    collective: str
    ranks: int
    nodes: int
    library: Library
    dtype: str
    sizes: FloatArray
    times_us: FloatArray
    repeats: int = 1

    @property
    def key(self) -> tuple[str, int, int, Library, str]:
        """Configuration whose times the table holds."""
        return self.collective, self.ranks, self.nodes, self.library, self.dtype

    def time_us(self, size_bytes: FloatArray) -> FloatArray:
        """Interpolate times for sizes in bytes; both arrays have the same shape.

        Linear in the size between knots of the lower monotone envelope. Smaller sizes take the
        time of the first knot; larger sizes follow the slope of the last two knots.
        """
        return interpolate(self.sizes, envelope(self.times_us), size_bytes)

    def errors_between_knots(self) -> FloatArray:
        """Return the relative errors of the interpolation at measured sizes that it omits.

        The second, fourth, ... size is omitted, but never the last one, all at the same time. Their
        times are interpolated from the lower envelope of the remaining sizes. The result has
        |predicted / measured - 1| of each omitted size, in ascending order of size. It is empty if
        the table has fewer than `_MIN_KNOTS_FOR_ERROR` (4) sizes.
        """
        if len(self.sizes) < _MIN_KNOTS_FOR_ERROR:
            return np.zeros(0)
        left_out = np.zeros(len(self.sizes), dtype=bool)
        left_out[1:-1:2] = True
        remaining = ~left_out
        predicted = interpolate(
            self.sizes[remaining], envelope(self.times_us[remaining]), self.sizes[left_out]
        )
        return np.abs(predicted / self.times_us[left_out] - 1)


def envelope(times_us: FloatArray) -> FloatArray:
    """Return for every size the minimum time of this and all larger sizes, as an array of
    equal length.

    `times_us` must be in ascending order of the sizes. The result never decreases: it
    removes slow outliers and keeps jumps. It is empty without times.
    """
    reversed_minimum: FloatArray = np.minimum.accumulate(times_us[::-1])
    return reversed_minimum[::-1]


def interpolate(sizes: FloatArray, times_us: FloatArray, size_bytes: FloatArray) -> FloatArray:
    """Return the interpolated times in us at the sizes `size_bytes`, in an array of their shape.

    `sizes`, `times_us`: the measured sizes in bytes, ascending and distinct, and their
    times. Between them the time is linear in the size. Below the first size it is the
    first time. Above the last size it grows with the slope of the last two; if they fall,
    it is the last time. With a single measured size the time is constant. Raises
    `ValueError` (from numpy) without sizes.
    """
    inside = np.interp(size_bytes, sizes, times_us)
    if len(sizes) < 2:
        return inside
    slope = (times_us[-1] - times_us[-2]) / (sizes[-1] - sizes[-2])
    return np.asarray(inside + np.maximum(size_bytes - sizes[-1], 0) * max(float(slope), 0.0))


def one_place(points: Iterable[Measurement], other_place: str = "in") -> list[Measurement]:
    """Keep either the out-of-place or the in-place points of each configuration, not both.

    Points with the place `other_place` ("in" by default) are kept only if their configuration has
    no point of another place. A configuration is machine (its label), collective, ranks, nodes,
    library, data type and size: sizes that were measured in one place only are kept. The order of
    the points is kept.
    """
    listed = list(points)
    preferred = {_configuration(point) for point in listed if point.place != other_place}
    return [
        point
        for point in listed
        if point.place != other_place or _configuration(point) not in preferred
    ]


def make_tables(points: Iterable[Measurement], other_place: str = "in") -> list[MedianTimes]:
    """Build one table of times by size for each configuration of the points; [] without points.

    A configuration is collective, ranks, nodes, library (with version and variant) and data type.
    Tables are sorted by these five; libraries are compared as text. Points of all machines are
    combined. A table has the sizes in bytes, ascending, and for each the median time in us of its
    points. `repeats` is the lowest number of points of a size.

    `other_place` ("in" or "out") is the less preferred place. Its points are dropped if the same
    configuration has a point of another place, of the same size, on the same machine.
    """
    groups: dict[tuple[str, int, int, Library, str], dict[int, list[float]]] = {}
    for point in one_place(points, other_place):
        key = (point.collective, point.ranks, point.nodes, point.library, point.dtype)
        groups.setdefault(key, {}).setdefault(point.size_bytes, []).append(point.time_us)
    tables = []
    for key in sorted(groups, key=lambda one: (*one[:3], str(one[3]), one[4])):
        by_size = groups[key]
        sizes = sorted(by_size)
        medians = [float(np.median(by_size[size])) for size in sizes]
        repeats = min(len(times) for times in by_size.values())
        tables.append(MedianTimes(*key, np.array(sizes, dtype=float), np.array(medians), repeats))
    return tables


def _configuration(point: Measurement) -> tuple[object, ...]:
    label = machine_label(point.machine)
    call = point.collective, point.ranks, point.nodes, point.library, point.dtype
    return label, *call, point.size_bytes
