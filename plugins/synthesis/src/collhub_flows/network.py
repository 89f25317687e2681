"""Network of a flow: arcs between NPUs, each a route over links and, perhaps, switches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array, expanded_ranges, group_of_entry, row_pointer
from hub_core.network import Routes, Topology


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """Arcs from NPU `source[a]` to NPU `destination[a]`, int64 columns.

    Arc a takes the rows `routes.links[routes.indptr[a]:routes.indptr[a + 1]]` of `topology`, and
    passes no other NPU. Arcs share links.
    """

    topology: Topology
    source: Int64Array
    destination: Int64Array
    routes: Routes

    @classmethod
    def of(cls, topology: Topology) -> FlowNetwork:
        """Arcs of all pairs of NPUs that switches or links join.

        Raises `InputError` where switches are about, and an NPU cannot reach another.
        """
        npus = topology.num_npus
        if topology.num_nodes == npus:
            source, destination = _neighbours(topology)
        else:
            source, destination = np.nonzero(~np.eye(npus, dtype=np.bool_))
        # Simulators take these very routes: a flow on other ones could not be had.
        routes = topology.routes(source, destination)
        return cls(topology, source, destination, routes)._direct()

    @property
    def num_arcs(self) -> int:
        """Number of arcs."""
        return len(self.source)

    @property
    def arc_of_entry(self) -> Int64Array:
        """Arc of every entry of `routes.links`, int64."""
        return group_of_entry(self.routes.indptr)

    def _direct(self) -> FlowNetwork:
        """Arcs that pass switches alone: those over other NPUs are sums of these."""
        heads = self.topology.destination[self.routes.links]
        at_npu = heads < self.topology.num_npus
        visits = np.bincount(self.arc_of_entry[at_npu], minlength=self.num_arcs)
        kept = np.flatnonzero(visits == 1)
        first = self.routes.indptr[kept]
        lengths = self.routes.indptr[kept + 1] - first
        links = self.routes.links[expanded_ranges(first, lengths)]
        routes = Routes(row_pointer(lengths), links)
        return FlowNetwork(self.topology, self.source[kept], self.destination[kept], routes)


def _neighbours(topology: Topology) -> tuple[Int64Array, Int64Array]:
    """Pairs that a link joins, each once: parallel links count as their first one."""
    key = topology.source * topology.num_nodes + topology.destination
    pairs = np.unique(key)
    source, destination = np.divmod(pairs, topology.num_nodes)
    return source, destination
