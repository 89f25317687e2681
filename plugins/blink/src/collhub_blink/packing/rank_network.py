"""The network of a request as capacities: first the NPUs that take part, in the order of ranks, then all that forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from collhub_packing import CapacityGraph, DuplexLinks

from hub_core.diagnostics import InputError
from hub_core.topology import Topology

Int64Array = npt.NDArray[np.int64]

_NAMED_IN_A_MESSAGE = 8


@dataclass(frozen=True, slots=True, eq=False)
class RankNetwork:
    """`graph` node v is node `nodes[v]` of `topology`; NPUs that take no part forward, as switches do."""

    topology: Topology
    graph: CapacityGraph
    nodes: Int64Array

    @classmethod
    def of(cls, topology: Topology, npus: Sequence[int]) -> RankNetwork:
        """Rank r runs on `npus[r]`; links of several planes add up. Raises `InputError` for bandwidths without a common unit."""
        ranks = np.asarray(npus, np.int64)
        others = np.setdiff1d(np.arange(topology.num_nodes), ranks)
        nodes = np.concatenate([ranks, others])
        number = np.empty(topology.num_nodes, np.int64)
        number[nodes] = np.arange(topology.num_nodes)
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
        topology = self.topology
        turned = replace(topology, source=topology.destination, destination=topology.source)
        return RankNetwork(turned, transposed(self.graph), self.nodes)

    @property
    def is_direct(self) -> bool:
        """Whether all nodes take part."""
        return self.graph.num_compute == self.graph.num_nodes

    @property
    def is_duplex(self) -> bool:
        """Whether every link has one back with the same bandwidth."""
        try:
            DuplexLinks.of(self.graph)
        except InputError:
            return False
        return True

    @property
    def is_switchless(self) -> bool:
        """Whether all nodes are NPUs, so that every link's messages wait where they are sent."""
        return self.topology.num_npus == self.topology.num_nodes

    def named(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Nodes of the graph as nodes of the topology, ascending."""
        return tuple(sorted(int(self.nodes[node]) for node in nodes))

    def check_reach(self, starts: Sequence[int], is_forward: bool) -> None:
        """Raise `InputError` naming a rank that data from (or to, unless `is_forward`) one of `starts` cannot reach."""
        graph = self.graph if is_forward else transposed(self.graph)
        for start in starts:
            reached = _reached(graph, start)
            lost = np.flatnonzero(~reached[: graph.num_compute])
            if len(lost):
                raise self._unreachable(
                    start, int(lost[0]), self.named(np.flatnonzero(reached).tolist()), is_forward
                )

    def _unreachable(
        self, start: int, lost: int, cut: tuple[int, ...], is_forward: bool
    ) -> InputError:
        names = [self.topology.node_name(node) for node in cut[:_NAMED_IN_A_MESSAGE]]
        listed = ", ".join(names) + (", ..." if len(cut) > len(names) else "")
        start_name, lost_name = (
            self.topology.node_name(int(self.nodes[node])) for node in (start, lost)
        )
        what = f"NPU {lost_name} cannot be reached from NPU {start_name}: no link leaves"
        if not is_forward:
            what = f"NPU {lost_name} cannot reach NPU {start_name}: no link leads to"
        return InputError(
            f"topology {self.topology.name}: {what} the nodes {listed}",
            cure="add the missing links, let others forward with --relays, or leave the NPU out with --ranks",
            code="unreachable",
        )


def transposed(graph: CapacityGraph) -> CapacityGraph:
    """The same links turned round; arcs keep their numbers."""
    return replace(graph, source=graph.destination, destination=graph.source)


def induced(graph: CapacityGraph, nodes: Sequence[int]) -> CapacityGraph:
    """The network of these compute nodes alone, numbered in this order."""
    number = np.full(graph.num_nodes, -1, np.int64)
    number[list(nodes)] = np.arange(len(nodes))
    arcs = np.flatnonzero((number[graph.source] >= 0) & (number[graph.destination] >= 0))
    return CapacityGraph(
        len(nodes),
        len(nodes),
        number[graph.source[arcs]],
        number[graph.destination[arcs]],
        graph.capacity[arcs],
        graph.row[arcs],
        graph.unit,
    )


def _reached(graph: CapacityGraph, start: int) -> npt.NDArray[np.bool_]:
    reached = np.zeros(graph.num_nodes, np.bool_)
    reached[start] = True
    while True:
        further = graph.destination[reached[graph.source] & ~reached[graph.destination]]
        if not len(further):
            return reached
        reached[further] = True
