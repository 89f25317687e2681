"""Links as columns while a topology is built, and the time of a message on a link.

Simulators, synthesizers and bounds all use this definition of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import numpy as np
import numpy.typing as npt

from hub_core.columns import Float64Array, Int64Array
from hub_core.model.diagnostics import InputError
from hub_core.network.topology import Dimension, Topology

# Maximum time of one message on a link: a sequence of a hundred such messages fits 64 bits.
_MAX_MESSAGE_PS = 5e16
# The same for nanoseconds, 146 years: the sum of two fits 64 bits.
_MAX_MESSAGE_NS = float(1 << 62)
# Number of leading bits of a bound that sums of doubles compute correctly.
_EXACT_BITS = 50


class Occupancy(StrEnum):
    """Link models: how long a message occupies a link, and when it arrives after its start.

    SERIALIZATION: busy size/bandwidth, arrival after latency + size/bandwidth (ASTRA-sim's model).
    ALPHA_BETA: busy and arrival both latency + size/bandwidth (TACOS's model).
    """

    SERIALIZATION = "serialization"
    ALPHA_BETA = "alpha-beta"


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Directed links as columns of equal length. Without `plane`, all links are on plane 0."""

    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    plane: Int64Array | None = None

    @classmethod
    def uniform(
        cls,
        source: Int64Array,
        destination: Int64Array,
        bandwidth_bytes_per_s: float,
        latency_s: float,
    ) -> Links:
        """Create links from `source[i]` to `destination[i]` with equal bandwidth and latency.

        All links are on plane 0. The columns of bandwidth (bytes/s) and latency (s) are
        float64[links]. Values and lengths are not checked.
        """
        rates = np.full(len(source), bandwidth_bytes_per_s, np.float64)
        return cls(source, destination, rates, np.full(len(source), latency_s, np.float64))

    @classmethod
    def joined(cls, parts: Sequence[Links]) -> Links:
        """Concatenate the links of one or more parts; those of parts without planes are on plane 0.

        Nodes keep their numbers, so a node must have the same number in all parts. Raises
        `ValueError` without parts.
        """
        return cls(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.destination for part in parts]),
            np.concatenate([part.bandwidth_bytes_per_s for part in parts]),
            np.concatenate([part.latency_s for part in parts]),
            np.concatenate([part._planes() for part in parts]),
        )

    def by_source(self, num_npus: int | None = None) -> Links:
        """Return the links sorted by ascending source; links of one source keep their order.

        With `num_npus`, only links whose source is an NPU are sorted. The links of all switches
        follow in their present order. Missing planes become plane 0.
        """
        key = self.source if num_npus is None else np.minimum(self.source, num_npus)
        rows = np.argsort(key, kind="stable")
        return Links(
            self.source[rows],
            self.destination[rows],
            self.bandwidth_bytes_per_s[rows],
            self.latency_s[rows],
            self._planes()[rows],
        )

    def topology(
        self,
        name: str,
        num_npus: int,
        num_nodes: int,
        *,
        dimensions: tuple[Dimension, ...] = (),
        node_names: tuple[str, ...] = (),
        groups: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Topology:
        """Build a topology with these links in their present order.

        Links without planes are on plane 0. By default there are no dimensions, names and groups.
        The columns are shared with the topology and become read-only. Raises `InputError`
        (`invalid-topology`) for values that a topology cannot have, such as unknown nodes.
        """
        return Topology(
            name,
            num_npus,
            num_nodes,
            self.source,
            self.destination,
            self.bandwidth_bytes_per_s,
            self.latency_s,
            dimensions,
            node_names,
            groups or {},
            self._planes(),
        )

    def _planes(self) -> Int64Array:
        """Return the plane of every link: int64[links]."""
        return np.zeros(len(self.source), np.int64) if self.plane is None else self.plane


def link_times_ns(
    bandwidth_bytes_per_s: Float64Array,
    latency_ns: Float64Array,
    sizes: Int64Array,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
) -> tuple[Int64Array, Int64Array]:
    """Compute the times of messages on links in whole nanoseconds: (busy, arrival), int64.

    `sizes` are bytes; the three arrays are broadcast against each other. As in ASTRA-sim's
    analytical network, each time is truncated once, with B in bytes per ns:

    - arrival: trunc(latency + size / B)
    - busy: trunc(size / B) with `Occupancy.SERIALIZATION`, the arrival time with
      `Occupancy.ALPHA_BETA`

    Raises `InputError` (`too-long`) for an arrival time of 2^62 ns or more.
    """
    # Bytes per nanosecond first: the same order of operations as the simulator, bit by bit.
    serialization = sizes / (bandwidth_bytes_per_s / 1e9)
    exact = latency_ns + serialization
    if float(exact.max(initial=0.0)) >= _MAX_MESSAGE_NS:
        raise InputError(
            "a message takes longer than 146 years",
            cure="check sizes, bandwidths and latencies",
            code="too-long",
        )
    arrival = np.trunc(exact).astype(np.int64)
    return _busy_times(np.trunc(serialization).astype(np.int64), arrival, occupancy), arrival


def link_times_ps(
    bandwidth_bytes_per_s: Float64Array,
    latency_s: Float64Array,
    sizes: npt.ArrayLike,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
) -> tuple[Int64Array, Int64Array]:
    """Compute the times of messages on links in whole picoseconds: (busy, arrival), int64.

    The three arrays are broadcast against each other; `sizes` are bytes. Latency and size /
    bandwidth are each rounded to the nearest picosecond, halves to even, so that sums are
    exact and equal times compare equal. The arrival time is their sum. The link is busy for
    size / bandwidth with `Occupancy.SERIALIZATION`, and for the whole arrival time with
    `Occupancy.ALPHA_BETA`. Raises `InputError` (code `too-long`) if a latency, or a size /
    bandwidth, is above 5e16 ps. Bandwidths must be above 0.
    """
    latency = _rounded_ps(latency_s * 1e12)
    serialization = _rounded_ps(np.asarray(sizes, np.float64) * 1e12 / bandwidth_bytes_per_s)
    arrival = latency + serialization
    return _busy_times(serialization, arrival, occupancy), arrival


def whole_ps(bound_ns: float) -> float:
    """Convert a lower bound in ns to whole ps, rounded down.

    Infinity and NaN are returned unchanged. A value at most 1e-4 ps below an integer becomes this
    integer. From 2^50 ps (about 19 minutes) on, the bound is also reduced by its 2^50th part, so
    that rounding errors of doubles never increase it.
    """
    if not math.isfinite(bound_ns):
        return bound_ns
    # Sums of doubles err by less than 1e-4 ps, which is treated as equal; above about 20 minutes
    # they err by units in the last of 53 bits, which must not increase a bound.
    bound_ps = math.floor(bound_ns * 1000 + 1e-4)
    return bound_ps - (bound_ps >> _EXACT_BITS)


def _rounded_ps(exact_ps: Float64Array) -> Int64Array:
    """Round times in picoseconds to whole ones, int64, halves to even.

    Raises `InputError` (code `too-long`) if any time is above 5e16 ps (50,000 s).
    """
    longest = float(exact_ps.max(initial=0.0))
    if longest > _MAX_MESSAGE_PS:
        raise InputError(
            f"a message takes {longest / 1e12:.3g} s on a link; "
            f"times are counted up to {_MAX_MESSAGE_PS / 1e12:.0f} s",
            cure="choose a smaller size, or faster links",
            code="too-long",
        )
    return np.rint(exact_ps).astype(np.int64)


def _busy_times(serialization: Int64Array, arrival: Int64Array, occupancy: Occupancy) -> Int64Array:
    """Return the time that each message occupies its link, in the shape of `arrival`.

    SERIALIZATION: `serialization`, which is size / bandwidth, broadcast to this shape; ALPHA_BETA:
    the arrival time, which includes the latency. `arrival` itself may be returned.
    """
    match occupancy:
        case Occupancy.SERIALIZATION:
            # The latencies may have more dimensions than the serialization times.
            return np.array(np.broadcast_to(serialization, arrival.shape))
        case Occupancy.ALPHA_BETA:
            return arrival
        case _:
            assert_never(occupancy)
