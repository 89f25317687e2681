"""Paths of all shares, with whole units in the proportions of the flow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collhub_flows.demand import FlowDemand
from collhub_flows.linear_program import Flow
from collhub_flows.network import FlowNetwork
from hub_core.columns import Float64Array, Int64Array, csr, expanded_ranges, row_pointer

# Part of a share below which a path costs more messages than it spares load.
_LEAST_PART = 0.02
_MOST_PATHS = 8


@dataclass(frozen=True, slots=True, eq=False)
class FlowPaths:
    """Path p carries `units[p]` of share `share[p]` along `arcs[indptr[p]:indptr[p + 1]]`; int64.

    `share` ascends; the units of each share add up to `share_units`.
    """

    share: Int64Array
    units: Int64Array
    indptr: Int64Array
    arcs: Int64Array
    share_units: int

    @classmethod
    def of(
        cls,
        network: FlowNetwork,
        demand: FlowDemand,
        flow: Flow,
        share_units: int,
        most_pieces: int,
    ) -> FlowPaths:
        """Strip the widest paths from the flow of every source, and cut the shares after them.

        `most_pieces`: pieces into which a path that carries a whole share can be cut.
        """
        # Imported here: numba takes a second.
        from collhub_flows.kernels import stripped

        everyone = np.arange(network.num_arcs)
        indptr, arcs = csr(network.destination, everyone, network.topology.num_npus)
        share, part, path_indptr, path_arcs = stripped(
            demand.sources,
            demand.wants,
            indptr,
            arcs,
            network.source,
            network.destination,
            flow.amounts.copy(),
            _LEAST_PART,
            _MOST_PATHS,
        )
        units = _whole_units(share, part, share_units)
        kept = np.flatnonzero(units)
        first, lengths = path_indptr[kept], np.diff(path_indptr)[kept]
        chosen = path_arcs[expanded_ranges(first, lengths)]
        # Fewer units say the same where all counts have a divisor, but pieces need units, too.
        common = int(np.gcd.reduce(units))
        left = math.gcd(common, most_pieces)
        divisor = common // left if left == most_pieces else 1
        return cls(
            share[kept],
            units[kept] // divisor,
            row_pointer(lengths),
            chosen,
            share_units // divisor,
        )

    def pieces(self, most: int) -> tuple[Int64Array, Int64Array]:
        """Path and units of every piece, int64 each, by path: up to `most` of nearly equal size."""
        count = np.minimum(self.units, most)
        path = np.repeat(np.arange(len(self.units)), count)
        number = expanded_ranges(np.zeros(len(count), np.int64), count)
        units = self.units[path]
        # Ends of the pieces, rounded down, so that they add up to the path's units.
        end = (number + 1) * units // count[path]
        begin = number * units // count[path]
        return path, end - begin


def _whole_units(share: Int64Array, part: Float64Array, share_units: int) -> Int64Array:
    """Units of every path: its part of the share, rounded down, the rest to the widest path."""
    shares = int(share.max(initial=-1)) + 1
    # Narrow paths were left out: the others carry the whole share.
    total = np.bincount(share, part, minlength=shares)
    exact = share_units * part / total[share]
    units = np.floor(exact + 1e-6).astype(np.int64)
    given = np.bincount(share, units, minlength=shares).astype(np.int64)
    # Widest first within a share, so the first row of a share is its widest path.
    order = np.lexsort((-part, share))
    _, first = np.unique(share[order], return_index=True)
    units[order[first]] += share_units - given
    return units
