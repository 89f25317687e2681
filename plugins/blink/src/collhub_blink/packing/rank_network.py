"""The network of a request as capacities: first the NPUs that take part, then all that forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import Arcs, Int64Array, inverse
from collhub_packing import CapacityGraph, are_duplex, transposed

from hub_core.model import InputError
from hub_core.network import Topology

_NAMED_IN_A_MESSAGE = 8


@dataclass(frozen=True, slots=True, eq=False)
class RankNetwork:
    """`graph` node v is node `nodes[v]` of `topology`, node r that of rank r.

    NPUs that take no part forward, as switches do: they stand behind the ranks. `is_turned`: all
    links are turned round.
    """

    topology: Topology
    graph: CapacityGraph
    nodes: Int64Array
    is_turned: bool = False

    @classmethod
    def of(cls, topology: Topology, npus: Sequence[int]) -> RankNetwork:
        """Rank r runs on `npus[r]`; links of several planes add up.

        Raises `InputError` for bandwidths without a common unit.
        """
        ranks = np.asarray(npus, np.int64)
        others = np.setdiff1d(np.arange(topology.num_nodes), ranks)
        # A capacity graph takes its first nodes for those that compute.
        nodes = np.concatenate([ranks, others])
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
        """All links turned round."""
        turned = _turned(self.topology)
        return RankNetwork(turned, transposed(self.graph), self.nodes, not self.is_turned)

    def ways(self, parents: Int64Array, children: Int64Array) -> list[tuple[int, ...]]:
        """Nodes of the way from each parent to its child, int64 nodes of the topology.

        As simulators route messages, which go to the parent where the links are turned round.
        """
        topology, senders, takers = self.topology, parents, children
        if self.is_turned:
            topology, senders, takers = _turned(topology), children, parents
        routes = topology.routes(senders, takers)
        ways = []
        for place, sender in enumerate(senders.tolist()):
            rows = routes.links[routes.indptr[place] : routes.indptr[place + 1]]
            way = (sender, *topology.destination[rows].tolist())
            ways.append(way[::-1] if self.is_turned else way)
        return ways

    @property
    def is_direct(self) -> bool:
        """Whether all nodes take part."""
        return not self.graph.has_switches

    @property
    def is_duplex(self) -> bool:
        """Whether every link has one back with the same bandwidth."""
        return are_duplex(self.graph)

    @property
    def is_switchless(self) -> bool:
        """Whether all nodes are NPUs, so that every link's messages wait where they are sent."""
        return self.topology.num_npus == self.topology.num_nodes

    @property
    def is_multiplied(self) -> bool:
        """Whether switches multicast or reduce, so that links carry messages for several others."""
        return bool(self.topology.multicast or self.topology.reduction)

    def named(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Nodes of the graph as nodes of the topology, ascending."""
        return tuple(sorted(int(self.nodes[node]) for node in nodes))

    def check_reach(self, start: int, is_forward: bool) -> None:
        """Raise `InputError` naming a rank that data from rank `start` cannot reach.

        Or data to it, unless `is_forward`.
        """
        # Who cannot send to a rank is who it cannot reach against the links.
        graph = self.graph if is_forward else transposed(self.graph)
        arcs = Arcs(graph.num_nodes, graph.source, graph.destination)
        reached = arcs.hops(np.asarray([start]))[0] >= 0
        lost = np.flatnonzero(~reached[: graph.num_compute])
        if len(lost):
            cut = self.named(np.flatnonzero(reached).tolist())
            raise self._unreachable(start, int(lost[0]), cut, is_forward)

    def _unreachable(
        self,
        start: int,
        lost: int,
        cut: tuple[int, ...],
        is_forward: bool,
    ) -> InputError:
        """The refusal of a network in which no link joins the nodes of `cut` to the others."""
        start_name, lost_name = self._node_name(start), self._node_name(lost)
        what = f"NPU {lost_name} cannot be reached from NPU {start_name}: no link leaves"
        if not is_forward:
            what = f"NPU {lost_name} cannot reach NPU {start_name}: no link leads to"
        return InputError(
            f"topology {self.topology.name}: {what} the nodes {self._listed(cut)}",
            cure="add the missing links, let others forward with --relays, "
            "or leave the NPU out with --ranks",
            code="unreachable",
        )

    def _node_name(self, node: int) -> str:
        """The topology's name for a node of the graph."""
        number = int(self.nodes[node])
        return self.topology.node_name(number)

    def _listed(self, nodes: tuple[int, ...]) -> str:
        """Names of the first nodes of the topology that are given."""
        names = [self.topology.node_name(node) for node in nodes[:_NAMED_IN_A_MESSAGE]]
        listed = ", ".join(names)
        return listed + ", ..." if len(nodes) > len(names) else listed


def _turned(topology: Topology) -> Topology:
    """All links turned round, in the same order."""
    return replace(topology, source=topology.destination, destination=topology.source)
