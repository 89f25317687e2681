"""Network and demand of a flow.

Arcs lead between NPUs; each is a route over links and, possibly, switches. The demand lists which
NPU sends a share to which other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
)
from hub_core.model import Collective, CollectiveKind, InputError
from hub_core.network import Routes, Topology

KINDS = (CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER, CollectiveKind.GATHER)
"""Collectives in which every share is sent from one rank to one other rank."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowDemand:
    """Demand of shares: `wants[i, t]` from NPU `sources[i]` to NPU t.

    `sources`: int64, ascending. `wants`: bool (one share or none), or float64, [sources, NPUs].
    """

    sources: Int64Array
    wants: BoolArray | Float64Array

    @classmethod
    def of(cls, collective: Collective, npus: Sequence[int], num_npus: int) -> FlowDemand:
        """Build the demand of a collective whose rank r runs on `npus[r]`.

        Raises `InputError` for collectives other than `KINDS`.
        """
        if collective.kind not in KINDS:
            raise InputError(
                f"flows does not support {collective.kind}: not every share has a single target",
                cure="choose all-to-all, scatter or gather, or use tacos or blink",
                code="collective-unsupported",
            )
        table = np.zeros((num_npus, num_npus), np.bool_)
        members = np.asarray(npus, np.int64)
        senders = receivers = members
        if collective.kind is CollectiveKind.SCATTER:
            senders = members[[collective.root or 0]]
        if collective.kind is CollectiveKind.GATHER:
            receivers = members[[collective.root or 0]]
        table[np.ix_(senders, receivers)] = True
        np.fill_diagonal(table, False)
        sources = np.flatnonzero(table.any(axis=1))
        return cls(sources, table[sources])

    @property
    def pairs(self) -> tuple[Int64Array, Int64Array]:
        """Source and target NPU of every share, sorted by source: two int64 arrays."""
        row, target = np.nonzero(self.wants)
        return self.sources[row], target


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """Arcs from NPU `source[a]` to NPU `destination[a]`, int64 columns.

    The route of arc a is the links `routes.links[routes.indptr[a]:routes.indptr[a + 1]]` of
    `topology`; it does not pass through any NPU. Several arcs may use the same link.
    """

    topology: Topology
    source: Int64Array
    destination: Int64Array
    routes: Routes

    @classmethod
    def of(cls, topology: Topology) -> FlowNetwork:
        """Build the arcs between all pairs of NPUs that a link or switches connect.

        Raises `InputError` if the topology has switches and an NPU cannot reach another one.
        """
        npus = topology.num_npus
        if topology.num_nodes == npus:
            # Pairs that a link connects, each once.
            key = topology.source * topology.num_nodes + topology.destination
            source, destination = np.divmod(np.unique(key), topology.num_nodes)
        else:
            source, destination = np.nonzero(~np.eye(npus, dtype=np.bool_))
        # Simulators use these routes, so a flow on other routes could not be executed.
        routes = topology.routes(source, destination)
        return cls(topology, source, destination, routes)._remove_indirect()

    @property
    def num_arcs(self) -> int:
        """Number of arcs."""
        return len(self.source)

    @property
    def arc_of_entry(self) -> Int64Array:
        """Arc of every entry of `routes.links`, int64."""
        return group_of_entry(self.routes.indptr)

    def _remove_indirect(self) -> FlowNetwork:
        """Remove arcs whose route passes through an NPU; they are sums of the remaining arcs."""
        heads = self.topology.destination[self.routes.links]
        at_npu = heads < self.topology.num_npus
        visits = np.bincount(self.arc_of_entry[at_npu], minlength=self.num_arcs)
        direct = np.flatnonzero(visits == 1)
        first = self.routes.indptr[direct]
        lengths = self.routes.indptr[direct + 1] - first
        links = self.routes.links[expanded_ranges(first, lengths)]
        routes = Routes(row_pointer(lengths), links)
        return FlowNetwork(self.topology, self.source[direct], self.destination[direct], routes)
