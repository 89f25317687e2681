"""Calls of collectives, measured or planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

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
        """Number of ranks."""

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
    return f"{ranks} ranks on {'1 node' if nodes == 1 else f'{nodes} nodes'}"


def may_be_equal(first: Library, second: Library) -> bool:
    """Whether two libraries have the same name and variant and no different versions; an unknown
    version equals any version.
    """
    is_same = (first.name, first.variant) == (second.name, second.variant)
    return is_same and (not first.version or not second.version or first.version == second.version)


def merge_calls(points: Iterable[Measurement]) -> list[Measurement]:
    """Combine records of the ranks of one call into one point per collective and size.

    The time of a rank includes the wait for late ranks, so a call takes the minimum over its
    ranks; a point is the median over the calls. Points without a call are unchanged.
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
