"""Routes of messages: one shortest path per pair of nodes, with the ties of `Topology.routes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
    rows_of,
    run_lengths,
)
from hub_core.model.diagnostics import InputError

if TYPE_CHECKING:
    from hub_core.network.topology import Topology

# Maximum number of cells of the (destination, node or link) tables of one search step.
_SEARCH_CELLS = 1 << 20


@dataclass(frozen=True, slots=True)
class Routes:
    """One path per pair: path i takes the link rows `links[indptr[i]:indptr[i + 1]]` in order."""

    indptr: Int64Array
    links: Int64Array


def shortest_routes(topology: Topology, sources: Int64Array, destinations: Int64Array) -> Routes:
    """Find the routes of all pairs on a topology with one plane, as `Topology.routes` does.

    A pair with equal ends has an empty route. Raises `InputError` with a pair that has no path.
    """
    direct = _direct_links(topology, sources, destinations)
    # Neighbours need no search; in fully connected networks all pairs are neighbours.
    direct_rows = np.flatnonzero(direct >= 0)
    distant = np.flatnonzero((direct < 0) & (sources != destinations))
    parts = [(direct_rows, Routes(np.arange(len(direct_rows) + 1), direct[direct_rows]))]
    if len(distant):
        parts += _distant_routes(topology, sources, destinations, distant)
    return joined_routes(len(sources), parts)


def joined_routes(count: int, parts: Sequence[tuple[Int64Array, Routes]]) -> Routes:
    """Combine routes of subsets of `count` pairs; pairs in no subset get an empty route.

    `parts`: (indices of pairs, their routes in this order) of each subset; subsets must not
    overlap.
    """
    length = np.zeros(count, np.int64)
    for pairs, routes in parts:
        length[pairs] = np.diff(routes.indptr)
    indptr = row_pointer(length)
    links = np.empty(int(indptr[-1]), np.int64)
    for pairs, routes in parts:
        links[expanded_ranges(indptr[pairs], length[pairs])] = routes.links
    return Routes(indptr, links)


def _direct_links(topology: Topology, sources: Int64Array, destinations: Int64Array) -> Int64Array:
    """Return the first link in link order from each source to its destination, or -1: int64."""
    nodes = topology.num_nodes
    keys, first = np.unique(topology.source * nodes + topology.destination, return_index=True)
    # The index -1 of a missing pair selects the appended -1.
    return np.append(first, -1)[rows_of(sources * nodes + destinations, keys)]


def _distant_routes(
    topology: Topology, sources: Int64Array, destinations: Int64Array, pairs: Int64Array
) -> list[tuple[Int64Array, Routes]]:
    """Find the routes of `pairs`; return the indices of the pairs of each batch with their routes.

    `pairs`: indices of `sources` and `destinations`. Pairs with the same destination share a
    search; as many destinations are searched at once as `_SEARCH_CELLS` allows. Raises `InputError`
    with a pair that has no path.
    """
    # Pairs of one destination share its search.
    pairs = pairs[np.argsort(destinations[pairs], kind="stable")]
    goals, first = np.unique(destinations[pairs], return_index=True)
    bounds = np.append(first, len(pairs))
    search = _RouteSearch(topology)
    batch = max(1, _SEARCH_CELLS // max(topology.num_links, topology.num_nodes))
    parts = []
    for start in range(0, len(goals), batch):
        stop = min(start + batch, len(goals))
        chosen = pairs[bounds[start] : bounds[stop]]
        goal_of_pair = group_of_entry(bounds[start : stop + 1])
        routes = search.routes(goals[start:stop], goal_of_pair, sources[chosen])
        parts.append((chosen, routes))
    return parts


class _RouteSearch:
    """Shortest paths of one topology to a batch of goals.

    A breadth-first search runs backwards from the goals. A link is useful if it leads to a node one
    hop nearer to the goal. A path takes one useful link at every node, so it never needs to
    backtrack. Links are grouped by their source, in link order within a group.
    """

    def __init__(self, topology: Topology) -> None:
        """Prepare the search for routes in a topology of one plane (not checked).

        It runs backwards from destinations; arcs and groups of arcs are computed once here.
        """
        self._topology = topology
        self._backwards = topology.arcs(backwards=True)
        self._links = self._backwards.entering

    def routes(self, goals: Int64Array, goal_of_path: Int64Array, sources: Int64Array) -> Routes:
        """Return the path from `sources[i]` to `goals[goal_of_path[i]]`, for every i.

        Paths are shortest in the number of links. Among the links that bring the path nearer to its
        goal, an NPU takes the first. A switch with n such links takes the one with the number d mod
        n, and d becomes d // n; d is the number of the goal at first. The route of equal ends is
        empty. Raises `InputError` (code `disconnected`) with the first pair that has no path.
        """
        distance = self._backwards.hops(goals)
        length = distance[goal_of_path, sources].astype(np.int64)
        lost = np.flatnonzero(length < 0)
        if len(lost):
            name = self._topology.node_name
            source, goal = sources[lost[0]], goals[goal_of_path[lost[0]]]
            raise InputError(
                f"topology {self._topology.name}: no path from {name(source)} to {name(goal)}",
                cure="add the missing links, or choose a connected topology",
                code="disconnected",
            )
        useful, count, start = self._useful_links(distance)
        indptr = row_pointer(length)
        links = np.empty(int(indptr[-1]), np.int64)
        path, node, digits = np.arange(len(sources)), sources, goals[goal_of_path]
        hop = 0
        # All paths advance by one link per iteration; finished paths are removed.
        while len(path):
            goal = goal_of_path[path]
            # Only switches spread paths; an NPU uses its first link, as ASTRA-sim does on rings.
            is_switch = node >= self._topology.num_npus
            ties = np.where(is_switch, count[goal, node], 1)
            digits, choice = np.divmod(digits, ties)
            link = useful[start[goal, node] + choice]
            links[indptr[path] + hop] = link
            hop += 1
            going = np.flatnonzero(length[path] > hop)
            path, digits = path[going], digits[going]
            node = self._topology.destination[link[going]]
        return Routes(indptr, links)

    def _useful_links(
        self, distance: npt.NDArray[np.int32]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the links that bring a path nearer to its goal: (links, count, start), int64.

        Those of a node for a goal are `count[goal, node]` entries of `links` from `start[goal,
        node]` on, in the order of the node's links. `distance`: hops from every node to every goal,
        [goals, nodes], -1 without a path.
        """
        rows, tails, first = self._links
        tail = np.repeat(tails, run_lengths(first, len(rows)))
        remaining = distance[:, self._topology.destination[rows]]
        is_useful = (remaining >= 0) & (remaining == distance[:, tail] - 1)
        count = np.zeros(distance.shape, np.int64)
        count[:, tails] = np.add.reduceat(is_useful, first, axis=1, dtype=np.int64)
        # `np.nonzero` lists useful links row by row of the (goal, link) table.
        start = np.cumsum(count).reshape(count.shape) - count
        return rows[np.nonzero(is_useful)[1]], count, start
