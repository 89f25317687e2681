"""Record of a search in the history of a workload: predicted times, and the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from collhub_coconet.search.explore import Candidate
from collhub_coconet.search.rates import Rates
from hub_core import Topology
from hub_core.model import JsonValue


@dataclass(frozen=True, slots=True)
class Outlook:
    """Machine of a search, and the origin of its times.

    `times_are`: "by formula" or "simulated", with details, as shown in the report.
    """

    topology: Topology
    rates: Rates
    times_are: str

    def to_record(
        self, before: Candidate, after: Candidate, size_index: int
    ) -> dict[str, JsonValue]:
        """Build the record that follows those of the transformations.

        `before`, `after`: the original and the selected program. Times are in ns, of the slowest
        rank; peaks are bytes of tensors on a rank; `means` has a text per collective or chain.
        """
        choices = {name: str(means) for name, means in after.timings[size_index].choices.items()}
        return {
            "transformation": "search",
            "predicted_ns": _predicted_ns(after, size_index),
            "predicted_before_ns": _predicted_ns(before, size_index),
            "peak_bytes": after.peaks[size_index],
            "peak_before_bytes": before.peaks[size_index],
            "times_are": self.times_are,
            "means": choices,  # type: ignore[dict-item]
            "machine": {"topology": self.topology.name, **asdict(self.rates)},
        }


def _predicted_ns(candidate: Candidate, size_index: int) -> int:
    """Predicted time at one size, rounded to ns."""
    return round(candidate.timings[size_index].seconds * 1e9)
