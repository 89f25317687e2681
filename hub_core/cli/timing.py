"""A simulated run and the numbers by which it is judged.

Bandwidth, lower bound, and the ratio to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hub_core.model import Algorithm, placement_of
from hub_core.model.kinds import CollectiveKind
from hub_core.network import Topology, lower_bound_ns
from hub_core.plugin_api import SimulationResult


@dataclass(frozen=True, slots=True)
class Timing:
    """A run of a collective of `collective_bytes`.

    `bound_ns`: no algorithm is faster, None where none is known.

    `is_size_known`: False for a timing-only trace of messages in bytes, whose collective has an
    unknown size.
    """

    collective_bytes: int
    result: SimulationResult
    bound_ns: float | None
    is_size_known: bool = True

    @property
    def time_ns(self) -> int | None:
        """When the last rank finished, None where a rank never does."""
        return self.result.time_ns

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth, size by time.

        None where a rank never finishes or the size is not known.
        """
        return (
            self.collective_bytes / self.time_ns * 1e9
            if self.time_ns and self.is_size_known
            else None
        )

    @property
    def ratio_to_bound(self) -> float | None:
        """Time by bound, or None where one of them is missing or the bound is zero."""
        return self.time_ns / self.bound_ns if self.time_ns is not None and self.bound_ns else None


def judged(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, result: SimulationResult
) -> Timing:
    """Put a result beside the lower bound of the algorithm's collective on the topology."""
    # The bound is one of ranks on NPUs 0..n-1.
    is_placed = placement_of(algorithm) is not None
    collective = algorithm.collective
    bound = None if is_placed else lower_bound_ns(collective, topology, collective_bytes)
    is_known = algorithm.collective.kind is not CollectiveKind.CUSTOM or algorithm.has_contents
    return Timing(
        collective_bytes,
        result,
        bound if bound is not None and math.isfinite(bound) else None,
        is_known,
    )
