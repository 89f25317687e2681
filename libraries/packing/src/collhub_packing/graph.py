"""Networks with exact integer capacities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hub_core.model import InputError
from hub_core.network import Topology

Int64Array = npt.NDArray[np.int64]

_MOST_CAPACITY = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class CapacityGraph:
    """Directed arcs with int64 capacities in units of `unit` bytes per second, an exact fraction.

    Nodes 0..num_compute-1 compute, the others are switches. `source`, `destination`, `capacity`, `row` (row of the
    topology that the arc is): int64 columns. At most one arc per ordered pair of nodes.
    """

    num_nodes: int
    num_compute: int
    source: Int64Array
    destination: Int64Array
    capacity: Int64Array
    row: Int64Array
    unit: Fraction

    @classmethod
    def of(cls, topology: Topology) -> CapacityGraph:
        """The network with bandwidths scaled to the least integers; each stands for its shortest decimal text.

        Of parallel links the first in link order stands, as simulators use no other. Those of different planes add up,
        which gives the rate that no algorithm over all planes exceeds: trees are packed on `Topology.on_plane`. Raises
        `InputError` where the bandwidths have no common unit in which all are below 2^40.
        """
        key = topology.source * topology.num_nodes + topology.destination
        _, row = np.unique(topology.plane * topology.num_nodes**2 + key, return_index=True)
        row = row.astype(np.int64)
        values, which = np.unique(topology.bandwidth_bytes_per_s[row], return_inverse=True)
        exact = [Fraction(repr(float(value))) for value in values]
        denominator = math.lcm(*(value.denominator for value in exact)) if exact else 1
        whole = [int(value * denominator) for value in exact]
        divisor = math.gcd(*whole) if whole else 1
        scaled = [value // divisor for value in whole]
        if scaled and max(scaled) > _MOST_CAPACITY:
            raise InputError(
                f"topology {topology.name}: its bandwidths have no common unit below 2^40",
                cure="round them, for example to whole GB/s",
                code="capacities",
            )
        capacity = np.asarray(scaled, np.int64)[which.ravel()] if scaled else np.zeros(0, np.int64)
        _, first, pair = np.unique(key[row], return_index=True, return_inverse=True)
        total = np.zeros(len(first), np.int64)
        np.add.at(total, pair.ravel(), capacity)
        row = row[first]
        return cls(
            topology.num_nodes,
            topology.num_npus,
            topology.source[row],
            topology.destination[row],
            total,
            row,
            Fraction(divisor, denominator),
        )

    @property
    def num_arcs(self) -> int:
        """Number of arcs."""
        return len(self.source)
