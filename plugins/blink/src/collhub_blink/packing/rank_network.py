"""The network of a request as a capacity graph: participating NPUs first, then forwarding nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing import CapacityGraph, are_duplex, transposed

from hub_core.columns import Arcs, Int64Array, inverse
from hub_core.model import InputError
from hub_core.network import Topology

_MAX_NAMES_IN_A_MESSAGE = 8


@dataclass(frozen=True, slots=True, eq=False)
class RankNetwork:
    """A topology as a capacity graph over ranks.

    Node v of `graph` is node `nodes[v]` of `topology`; node r is rank r. Idle NPUs forward as
    switches do and follow the ranks. `is_reversed`: all links are reversed.
    """

    topology: Topology
    graph: CapacityGraph
    nodes: Int64Array
    is_reversed: bool = False

    @classmethod
    def of(cls, topology: Topology, npus: Sequence[int]) -> RankNetwork:
        """Build the network in which rank r runs on `npus[r]`.

        Parallel links, also of several planes, add up. Raises `InputError` for bandwidths without a
        common unit.
        """
        ranks = np.asarray(npus, np.int64)
        forwarders = np.setdiff1d(np.arange(topology.num_nodes), ranks)
        # The first nodes of a capacity graph are the computing ones.
        nodes = np.concatenate([ranks, forwarders])
        number = inverse(nodes)
        renumbered = Topology(
            topology.name,
            len(ranks),
            topology.num_nodes,
            number[topology.source],
            number[topology.destination],
            topology.bandwidth_bytes_per_s.copy(),
            topology.latency_s.copy(),
            plane=topology.plane.copy(),
        )
        return cls(topology, CapacityGraph.of(renumbered), nodes)

    @property
    def reversed(self) -> RankNetwork:
        """The same network with all links reversed."""
        reversed_topology = _reverse_links(self.topology)
        return RankNetwork(
            reversed_topology, transposed(self.graph), self.nodes, not self.is_reversed
        )

    def find_routes(self, parents: Int64Array, children: Int64Array) -> list[tuple[int, ...]]:
        """Find the nodes on the route from each parent to its child, as simulators route messages.

        Nodes of the topology; `parents`, `children`: int64[pairs]. In a reversed network the
        messages run from child to parent, and the route is returned from parent to child.
        """
        topology, senders, receivers = self.topology, parents, children
        if self.is_reversed:
            topology, senders, receivers = _reverse_links(topology), children, parents
        routes = topology.routes(senders, receivers)
        node_routes = []
        for index, sender in enumerate(senders.tolist()):
            rows = routes.links[routes.indptr[index] : routes.indptr[index + 1]]
            route = (sender, *topology.destination[rows].tolist())
            node_routes.append(route[::-1] if self.is_reversed else route)
        return node_routes

    @property
    def is_direct(self) -> bool:
        """Whether all nodes of the topology are ranks."""
        return not self.graph.has_switches

    @property
    def is_duplex(self) -> bool:
        """Whether every link has a reverse link of the same bandwidth."""
        return are_duplex(self.graph)

    @property
    def is_switchless(self) -> bool:
        """Whether all nodes are NPUs, so that messages queue only at their sender."""
        return self.topology.num_npus == self.topology.num_nodes

    @property
    def is_multiplied(self) -> bool:
        """Whether switches multicast or reduce, so that a link carries one message for several."""
        return bool(self.topology.multicast or self.topology.reduction)

    def to_topology_nodes(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Convert nodes of the graph to nodes of the topology, ascending."""
        return tuple(sorted(int(self.nodes[node]) for node in nodes))

    def check_reach(self, start: int, is_forward: bool) -> None:
        """Check that data from rank `start` reaches every rank, or that every rank reaches `start`.

        The latter unless `is_forward`. Raises `InputError` that names the first unreachable rank.
        """
        # Ranks that cannot send to `start` are not reached from it over reversed links.
        graph = self.graph if is_forward else transposed(self.graph)
        arcs = Arcs(graph.num_nodes, graph.source, graph.destination)
        reached = arcs.hops(np.asarray([start]))[0] >= 0
        unreached = np.flatnonzero(~reached[: graph.num_compute])
        if len(unreached):
            cut = self.to_topology_nodes(np.flatnonzero(reached).tolist())
            raise self._unreachable_error(start, int(unreached[0]), cut, is_forward)

    def _unreachable_error(
        self,
        start: int,
        unreached: int,
        cut: tuple[int, ...],
        is_forward: bool,
    ) -> InputError:
        """Build the error for a network in which no link joins the nodes of `cut` to the rest."""
        start_name, unreached_name = self._node_name(start), self._node_name(unreached)
        problem = f"NPU {unreached_name} cannot be reached from NPU {start_name}: no link leaves"
        if not is_forward:
            problem = f"NPU {unreached_name} cannot reach NPU {start_name}: no link leads to"
        return InputError(
            f"topology {self.topology.name}: {problem} the nodes {self._list_names(cut)}",
            cure="add the missing links, let idle NPUs forward with --relays, "
            "or leave the NPU out with --ranks",
            code="unreachable",
        )

    def _node_name(self, node: int) -> str:
        """Name of a graph's node in the topology."""
        number = int(self.nodes[node])
        return self.topology.node_name(number)

    def _list_names(self, nodes: tuple[int, ...]) -> str:
        """List the names of topology nodes, at most 8."""
        names = [self.topology.node_name(node) for node in nodes[:_MAX_NAMES_IN_A_MESSAGE]]
        listed = ", ".join(names)
        return listed + ", ..." if len(nodes) > len(names) else listed


def _reverse_links(topology: Topology) -> Topology:
    """Return the topology with all links reversed, in the same order."""
    return replace(topology, source=topology.destination, destination=topology.source)
