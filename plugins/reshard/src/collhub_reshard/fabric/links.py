"""The devices of some meshes on a topology: which links a message between two of them takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collhub_reshard.scheduling.host_network import exact_rate
from hub_core.columns import Float64Array, Int64Array, group_of_entry
from hub_core.network import Topology

Edge = tuple[int, int]
# The closure of pairs takes the cube of them.
_MOST_DEVICES = 128


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """Links between devices, by the routes of a topology.

    `devices`: NPUs, ascending; an edge is a pair of places in it. `rates`: bytes per second of
    every link of the topology, exactly. `indptr`, `links`: rows of links on the route from place a
    to place b are `links[indptr[i]:indptr[i + 1]]`, i = a * len(devices) + b.
    """

    topology: Topology
    devices: tuple[int, ...]
    rates: tuple[Fraction, ...]
    indptr: Int64Array
    links: Int64Array

    @classmethod
    def of(cls, topology: Topology, devices: Iterable[int]) -> FabricLinks:
        """The links between some NPUs. Raises `InputError` for NPUs without a path."""
        places = np.asarray(sorted(set(devices)), np.int64)
        count = len(places)
        routes = topology.routes(np.repeat(places, count), np.tile(places, count))
        known = {rate: exact_rate(rate) for rate in set(topology.bandwidth_bytes_per_s.tolist())}
        rates = tuple(known[rate] for rate in topology.bandwidth_bytes_per_s.tolist())
        return cls(topology, tuple(places.tolist()), rates, routes.indptr, routes.links)

    def route(self, edge: Edge) -> Int64Array:
        """Rows of the links that a message between two places takes, in order."""
        pair = edge[0] * len(self.devices) + edge[1]
        return self.links[self.indptr[pair] : self.indptr[pair + 1]]

    def uses(self, edges: Iterable[Edge]) -> Int64Array:
        """How often some messages together take every link: int64[links]."""
        rows = [self.route(edge) for edge in edges]
        return np.bincount(np.concatenate(rows), minlength=len(self.rates))

    def pair_costs(self, weights: Float64Array) -> Float64Array:
        """The sum of the weights of links on every route: float64[places, places]."""
        count = len(self.devices)
        pair = group_of_entry(self.indptr)
        costs = np.bincount(pair, weights[self.links], minlength=count * count)
        return costs.astype(np.float64).reshape(count, count)


def fits_fabric(topology: Topology, devices: Iterable[int]) -> bool:
    """Whether streams are planned on a topology: one plane, and not too many devices."""
    # Messages of other planes would need a channel each.
    return topology.num_planes == 1 and len(set(devices)) <= _MOST_DEVICES
