"""Options of readers of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hub_core.plugin_api import Measurement, OptionType, choice, option

_NO_TIMES = {
    "both": "the file has no times",
    "out": "no time is measured out of place",
    "in": "no time is measured in place",
}


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Options of tests that measure out of place and in place."""

    place: str = choice(
        ("both", "out", "in"), "buffers whose times are read: out of place, in place"
    )

    def accepts(self, point: Measurement) -> bool:
        """Whether the place of a point is chosen."""
        return self.place == "both" or point.place == self.place

    def select(self, points: Iterable[Measurement]) -> Iterator[Measurement]:
        """Yield the points of the chosen place."""
        return (point for point in points if self.accepts(point))

    @property
    def refusal(self) -> tuple[str, str]:
        """Message and cure for a file without points of the chosen place."""
        return _NO_TIMES[self.place], "use -O place=both"


@dataclass(frozen=True, slots=True)
class InspectorOptions:
    """Options of the reader of Inspector files."""

    warmup_calls: int = option(
        OptionType.INT, 0, "calls at the start of each communicator that are not used", minimum=0
    )
