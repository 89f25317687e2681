"""What a picture of a comparison shows: curves in the order of their labels, and the winners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_pictures.comparisons.curve_looks import BOUND_LOOK, CurveLook, look
from hub_core.model import UsageError
from hub_core.plugin_api import BandwidthSeries, ReportRequest


@dataclass(frozen=True, slots=True)
class Curve:
    """A series and how it looks."""

    series: BandwidthSeries
    look: CurveLook
    is_bound: bool = False

    @property
    def values(self) -> list[float]:
        """Bandwidths, in bytes per second, at the sizes that have one."""
        return [value for value in self.series.bandwidths if value is not None]


def curves_of(request: ReportRequest) -> list[Curve]:
    """The bound, then all algorithms, the fastest at the largest size first.

    What has no value is left out. Raises `UsageError` where nothing is left.
    """
    drawn = [one for one in ranked(request.series) if any(one.bandwidths)]
    if not drawn:
        raise UsageError("no algorithm has a bandwidth to draw", code="nothing-to-draw")
    curves = [Curve(one, look(place)) for place, one in enumerate(drawn)]
    if request.bound is not None and any(request.bound.bandwidths):
        curves.insert(0, Curve(request.bound, BOUND_LOOK, is_bound=True))
    return curves


def ranked(series: Sequence[BandwidthSeries]) -> list[BandwidthSeries]:
    """By falling bandwidth at the largest size, then at the one before; equal ones as given."""
    return sorted(series, key=lambda one: [-(value or 0.0) for value in reversed(one.bandwidths)])


def winners(series: Sequence[BandwidthSeries], count: int) -> list[str]:
    """The name of the fastest at every one of `count` sizes, empty where none has a bandwidth."""
    found = []
    for place in range(count):
        timed = [(one.bandwidths[place] or 0.0, one.name) for one in series]
        best, name = max(timed, key=lambda pair: pair[0], default=(0.0, ""))
        found.append(name if best else "")
    return found
