"""Networks whose links are duplex, as undirected ones, and least sets of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_packing.flows import FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from hub_core.model import InputError

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class DuplexLinks:
    """Links with one capacity for either direction: int64 columns; `low` < `high` are the ends.

    `up`, `down`: the arcs of the graph from `low` to `high` and back.
    """

    num_nodes: int
    low: Int64Array
    high: Int64Array
    capacity: Int64Array
    up: Int64Array
    down: Int64Array

    @classmethod
    def of(cls, graph: CapacityGraph) -> DuplexLinks:
        """Pair the arcs of a graph. Raises `InputError` for links that differ by direction."""
        up = np.flatnonzero((graph.source < graph.destination) & (graph.capacity > 0))
        down = np.flatnonzero((graph.source > graph.destination) & (graph.capacity > 0))
        up = up[np.lexsort((graph.destination[up], graph.source[up]))]
        down = down[np.lexsort((graph.source[down], graph.destination[down]))]
        if not _are_opposite(graph, up, down):
            raise InputError(
                "links differ by direction, so that trees of undirected links do not fit",
                cure="use trees for each direction",
                code="not-duplex",
            )
        return cls(
            graph.num_nodes, graph.source[up], graph.destination[up], graph.capacity[up], up, down
        )

    def opposite(self, num_arcs: int) -> Int64Array:
        """For every arc of the graph the one that leads back, -1 for arcs without capacity."""
        back = np.full(num_arcs, -1, np.int64)
        back[self.up], back[self.down] = self.down, self.up
        return back


def _are_opposite(graph: CapacityGraph, up: Int64Array, down: Int64Array) -> bool:
    """Whether the arcs are the same links in opposite directions, with the same capacities."""
    return (
        np.array_equal(graph.source[up], graph.destination[down])
        and np.array_equal(graph.destination[up], graph.source[down])
        and np.array_equal(graph.capacity[up], graph.capacity[down])
    )


class LeastSets:
    """Find node sets X with the least capacity of links leaving X plus weights of the nodes of X: one least cut each."""

    def __init__(self, links: DuplexLinks, scale: int) -> None:
        n = links.num_nodes
        nodes = np.arange(n)
        source, sink = np.full(n, n), np.full(n, n + 1)
        self._network = FlowNetwork.of(
            n + 2,
            np.concatenate([links.low, links.high, source, nodes]),
            np.concatenate([links.high, links.low, nodes, sink]),
        )
        self._links = np.tile(scaled(links.capacity, scale), 2)
        self._num_nodes = n

    def least(
        self, members: Sequence[int], weights: Int64Array, allowed: BoolArray
    ) -> tuple[int, BoolArray]:
        """The least value of a set that holds all of `members` and only nodes of `allowed`, and the smallest such set."""
        n = self._num_nodes
        gain, loss = np.maximum(-weights, 0), np.maximum(weights, 0)
        # What members weigh is paid whatever the rest of the set.
        base = int(gain[allowed].sum()) - int(loss[members].sum())
        endless = int(self._links.sum()) + int(np.abs(weights).sum()) + 1
        gain, loss = np.where(allowed, gain, 0), np.where(allowed, loss, endless)
        gain[members], loss[members] = endless, 0
        cut = self._network.least_cut(np.concatenate([self._links, gain, loss]), n, [n + 1])
        assert cut is not None
        return cut.value - base, cut.side[:n]
