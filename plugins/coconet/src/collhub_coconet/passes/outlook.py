"""The time that a search predicts, and the machine that it is predicted for, as a record."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from collhub_coconet.search.explore import Candidate
from collhub_coconet.search.rates import Rates
from hub_core import Topology
from hub_core.model import JsonValue


@dataclass(frozen=True, slots=True)
class Outlook:
    """The machine of a search, and how its times were obtained."""

    topology: Topology
    rates: Rates
    how: str

    def record(self, before: Candidate, after: Candidate, place: int) -> dict[str, JsonValue]:
        """The record behind those of the transformations; `place`: the size by its index.

        Times are ns of the slowest rank, peaks bytes of tensors on a rank.
        """
        # Means by the name of a collective or chain, as the search tells them.
        choices = {name: str(one) for name, one in after.timings[place].choices.items()}
        return {
            "transformation": "search",
            "predicted_ns": _whole_ns(after, place),
            "predicted_before_ns": _whole_ns(before, place),
            "peak_bytes": after.peaks[place],
            "peak_before_bytes": before.peaks[place],
            "times_are": self.how,
            "means": choices,  # type: ignore[dict-item]
            "machine": {"topology": self.topology.name, **asdict(self.rates)},
        }


def _whole_ns(candidate: Candidate, place: int) -> int:
    """Predicted time in ns."""
    return round(candidate.timings[place].seconds * 1e9)
