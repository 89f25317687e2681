"""A simulated run and the numbers by which it is judged: bandwidth, lower bound, and the ratio to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hub_core.bounds import lower_bound_ns
from hub_core.collectives import Collective
from hub_core.plugins.contract import SimulationResult
from hub_core.topology import Topology

__all__ = ["Timing", "judged"]


@dataclass(frozen=True, slots=True)
class Timing:
    """A run of a collective of `collective_bytes`; `bound_ns`: no algorithm is faster, None where none is known."""

    collective_bytes: int
    result: SimulationResult
    bound_ns: float | None

    @property
    def time_ns(self) -> int | None:
        """When the last rank finished, None where a rank never does."""
        return self.result.time_ns

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth, size by time; None where a rank never finishes."""
        return self.collective_bytes / self.time_ns * 1e9 if self.time_ns else None

    @property
    def ratio_to_bound(self) -> float | None:
        """Time by bound, or None where one of them is missing or the bound is zero."""
        return self.time_ns / self.bound_ns if self.time_ns is not None and self.bound_ns else None


def judged(collective: Collective, topology: Topology, collective_bytes: int, result: SimulationResult) -> Timing:
    """Put a result beside the lower bound of the collective on the topology."""
    bound = lower_bound_ns(collective, topology, collective_bytes)
    return Timing(collective_bytes, result, bound if bound is not None and math.isfinite(bound) else None)
