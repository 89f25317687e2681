"""Networks of duplex links as undirected graphs, and minimum sets of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_packing.flows import FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError


@dataclass(frozen=True, slots=True, eq=False)
class DuplexLinks:
    """Links with equal capacity in both directions; int64 columns, one entry per link.

    `low` < `high`: the two nodes. `up`, `down`: the arcs of the graph from `low` to `high` and
    back.
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
        up, down = _pair_arcs(graph)
        if not _are_opposite(graph, up, down):
            raise _duplex_error()
        low, high, capacity = graph.source[up], graph.destination[up], graph.capacity[up]
        return cls(graph.num_nodes, low, high, capacity, up, down)

    def opposite(self, num_arcs: int) -> Int64Array:
        """Reverse arc of every arc of the graph: int64[num_arcs], -1 for arcs without capacity."""
        back = np.full(num_arcs, -1, np.int64)
        back[self.up] = self.down
        back[self.down] = self.up
        return back


def _duplex_error() -> InputError:
    """Build the error for links that differ by direction."""
    return InputError(
        "links differ by direction, so that trees of undirected links do not fit",
        cure="use trees for each direction",
        code="not-duplex",
    )


def are_duplex(graph: CapacityGraph) -> bool:
    """Whether every link has a reverse link of the same capacity."""
    try:
        DuplexLinks.of(graph)
    except InputError:
        return False
    return True


def _pair_arcs(graph: CapacityGraph) -> tuple[Int64Array, Int64Array]:
    """Find the arcs with capacity to higher and to lower nodes, both sorted by lower,
    higher node.
    """
    source, destination = graph.source, graph.destination
    has_room = graph.capacity > 0
    up = _sort_by_ends((source < destination) & has_room, source, destination)
    down = _sort_by_ends((source > destination) & has_room, destination, source)
    return up, down


def _sort_by_ends(chosen: BoolArray, low: Int64Array, high: Int64Array) -> Int64Array:
    """Sort the chosen arcs by their lower, then their higher node, and return their numbers."""
    arcs = np.flatnonzero(chosen)
    return arcs[np.lexsort((high[arcs], low[arcs]))]


def _are_opposite(graph: CapacityGraph, up: Int64Array, down: Int64Array) -> bool:
    """Whether the k-th arcs of both lists connect the same nodes in opposite directions.

    With equal capacities.
    """
    return (
        np.array_equal(graph.source[up], graph.destination[down])
        and np.array_equal(graph.destination[up], graph.source[down])
        and np.array_equal(graph.capacity[up], graph.capacity[down])
    )


class LeastSets:
    """Finds node sets X that minimize the capacity leaving X plus the weights in X.

    One minimum cut per query (Picard 1976, closures by flows): a node of negative weight is
    attached to the source by an arc, one of positive weight to the sink. `scale`: factor of the
    capacities.
    """

    def __init__(self, links: DuplexLinks, scale: int) -> None:
        tails = np.concatenate([links.low, links.high])
        heads = np.concatenate([links.high, links.low])
        self._network = FlowNetwork.fed_and_drained(links.num_nodes, tails, heads)
        self._links = np.tile(scaled(links.capacity, scale), 2)
        self._num_nodes = links.num_nodes

    def least(
        self,
        members: Sequence[int],
        weights: Int64Array,
        allowed: BoolArray,
    ) -> tuple[int, BoolArray]:
        """Find the smallest set of minimum value with all `members` and only nodes of `allowed`.

        Returns the value, and bool[nodes] of the set. `weights`: int64[nodes].
        """
        n = self._num_nodes
        gain, loss = np.maximum(-weights, 0), np.maximum(weights, 0)
        # The weights of members are a constant part of the value.
        base = int(gain[allowed].sum()) - int(loss[members].sum())
        unlimited = int(self._links.sum()) + int(np.abs(weights).sum()) + 1
        # Members and forbidden nodes are tied to their side of every cut.
        gain = np.where(allowed, gain, 0)
        loss = np.where(allowed, loss, unlimited)
        gain[members] = unlimited
        loss[members] = 0
        capacity = np.concatenate([self._links, gain, loss])
        cut = self._network.least_cut(capacity, n, [n + 1])
        assert cut is not None
        return cut.value - base, cut.side[:n]
