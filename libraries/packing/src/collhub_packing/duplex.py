"""Networks whose links are duplex, as undirected ones, and least sets of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_packing.flows import FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from hub_core.model import InputError


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
        up, down = _paired(graph)
        if not _are_opposite(graph, up, down):
            raise _not_duplex()
        low, high, capacity = graph.source[up], graph.destination[up], graph.capacity[up]
        return cls(graph.num_nodes, low, high, capacity, up, down)

    def opposite(self, num_arcs: int) -> Int64Array:
        """For every arc of the graph the one that leads back, -1 for arcs without capacity."""
        back = np.full(num_arcs, -1, np.int64)
        # What has no capacity leads nowhere, and back from nowhere.
        back[self.up] = self.down
        back[self.down] = self.up
        return back


def _not_duplex() -> InputError:
    return InputError(
        "links differ by direction, so that trees of undirected links do not fit",
        cure="use trees for each direction",
        code="not-duplex",
    )


def are_duplex(graph: CapacityGraph) -> bool:
    """Whether every link has one back with the same capacity."""
    try:
        DuplexLinks.of(graph)
    except InputError:
        return False
    return True


def _paired(graph: CapacityGraph) -> tuple[Int64Array, Int64Array]:
    """Arcs with capacity to higher nodes, and to lower ones: both by the lower, then the higher."""
    source, destination = graph.source, graph.destination
    # Arcs without capacity need no opposite.
    has_room = graph.capacity > 0
    up = _by_ends((source < destination) & has_room, source, destination)
    down = _by_ends((source > destination) & has_room, destination, source)
    return up, down


def _by_ends(chosen: BoolArray, low: Int64Array, high: Int64Array) -> Int64Array:
    """Numbers of the chosen arcs, by their lower and then by their higher node."""
    arcs = np.flatnonzero(chosen)
    return arcs[np.lexsort((high[arcs], low[arcs]))]


def _are_opposite(graph: CapacityGraph, up: Int64Array, down: Int64Array) -> bool:
    """Whether the arcs are the same links in opposite directions, with the same capacities."""
    return (
        np.array_equal(graph.source[up], graph.destination[down])
        and np.array_equal(graph.destination[up], graph.source[down])
        and np.array_equal(graph.capacity[up], graph.capacity[down])
    )


class LeastSets:
    """Find sets X of nodes for which capacity leaving X plus weights in X is least.

    One least cut each (Picard 1976, closures by flows): a node of negative weight is drawn to the
    source's side by an arc from the source, one of positive weight to the sink's by an arc there.
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
        """The least value of a set with all of `members` and only nodes of `allowed`.

        Returns the value, and bool[nodes] of the smallest such set. `weights`: int64[nodes].
        """
        n = self._num_nodes
        gain, loss = np.maximum(-weights, 0), np.maximum(weights, 0)
        # What members weigh is paid whatever the rest of the set.
        base = int(gain[allowed].sum()) - int(loss[members].sum())
        endless = int(self._links.sum()) + int(np.abs(weights).sum()) + 1
        # Who must be in the set, or must not, is tied to its side of every cut.
        gain = np.where(allowed, gain, 0)
        loss = np.where(allowed, loss, endless)
        gain[members] = endless
        loss[members] = 0
        capacity = np.concatenate([self._links, gain, loss])
        cut = self._network.least_cut(capacity, n, [n + 1])
        assert cut is not None
        return cut.value - base, cut.side[:n]
