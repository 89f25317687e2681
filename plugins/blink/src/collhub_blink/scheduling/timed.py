"""Schedules of packings with the time that they take, and what compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.scheduling.schedules import Scheduled

Judge = Callable[[PlacedPacking, Scheduled], int]
"""Time in nanoseconds of a schedule of a packing."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedSchedule:
    """A packing, its schedule, and the time in nanoseconds.

    `is_interrupted`: the search was cut short.
    """

    packing: PlacedPacking
    scheduled: Scheduled
    time_ns: int
    is_interrupted: bool = False


def own_ns(found: Scheduled) -> float:
    """Nanoseconds of a schedule by itself."""
    return found.pipeline.time_ps / 1000
