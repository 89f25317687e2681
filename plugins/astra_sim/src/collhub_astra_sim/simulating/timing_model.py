"""User choices of the analytical model."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_astra_sim.options import CONGESTION_AWARE, AnalyticalOptions
from hub_core.network import Occupancy


@dataclass(frozen=True, slots=True)
class TimingModel:
    """Parameters of the analytical model, with ASTRA-sim's as defaults.

    `is_congestion_aware`: messages wait for one another on links. `reduce_bytes_per_s`,
    `copy_bytes_per_s`: speed of local steps without a duration; None: 1 ns per step.
    """

    is_congestion_aware: bool = True
    occupancy: Occupancy = Occupancy.SERIALIZATION
    reduce_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None

    @classmethod
    def of_options(cls, options: AnalyticalOptions) -> TimingModel:
        """Return the model that the options of the simulator describe."""
        return cls(
            options.network == CONGESTION_AWARE,
            Occupancy(options.occupancy),
            options.reduce_bandwidth,
            options.copy_bandwidth,
        )
