"""Group measured points: places of the buffers, and tables by configuration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collhub_machine_profiles.gpus import machine_label
from collhub_machine_profiles.table import Table
from hub_core.plugin_api import Library, Measurement


def one_place(points: Iterable[Measurement], other_place: str = "in") -> list[Measurement]:
    """Keep one place of each configuration: `other_place` only if no other was measured.

    By default, times are those out of place, and in place without these.
    """
    listed = list(points)
    preferred = {_configuration(point) for point in listed if point.place != other_place}
    return [
        point
        for point in listed
        if point.place != other_place or _configuration(point) not in preferred
    ]


def make_tables(points: Iterable[Measurement], other_place: str = "in") -> list[Table]:
    """Build one table per configuration of the points, sorted by configuration.

    `other_place`: as in `one_place`.
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
        tables.append(Table(*key, np.array(sizes, dtype=float), np.array(medians), repeats))
    return tables


def _configuration(point: Measurement) -> tuple[object, ...]:
    label = machine_label(point.machine)
    return label, point.collective, point.ranks, point.nodes, point.library, point.dtype
