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
from hub_core.network.chain_routes import find_chain
from hub_core.network.source_routes import (
    SEARCH_CELLS,
    check_link_count,
    check_search_rounds,
    find_routes_from_sources,
)

if TYPE_CHECKING:
    from hub_core.network.chain_routes import NpuChain
    from hub_core.network.topology import Topology

# Destinations per source above which searches begin at the sources.
_DESTINATIONS_PER_SOURCE = 16


@dataclass(frozen=True, slots=True)
class Routes:
    """One path per pair: path i takes the link rows `links[indptr[i]:indptr[i + 1]]` in order."""

    indptr: Int64Array
    links: Int64Array


def shortest_routes(topology: Topology, sources: Int64Array, destinations: Int64Array) -> Routes:
    """Find a route with the fewest links for every pair of nodes on a topology with one plane.

    `sources`, `destinations`: int64, nodes (NPUs or switches). The routes are in the order of the
    pairs. A pair with equal ends gets an empty route, and a pair with a direct link the first such
    link in link order. In other routes, each node takes a link on a shortest path. Of several such
    links, an NPU takes the first in link order. A switch with n of them takes number d mod n, and d
    becomes d // n for the next switch; d begins as the number of the destination. Raises
    `InputError` (`disconnected`) for the first pair without a path, by destination, then in the
    given order, and (`too-large`) for routes of too many links, or for too many rounds of search
    (`check_link_count`, `check_search_rounds`).
    """
    # The first link in link order from each source to its destination, or -1.
    nodes = topology.num_nodes
    keys, first = np.unique(topology.source * nodes + topology.destination, return_index=True)
    # The index -1 of a missing pair selects the appended -1.
    direct = np.append(first, -1)[rows_of(sources * nodes + destinations, keys)]
    # Neighbours need no search; in fully connected networks all pairs are neighbours.
    direct_rows = np.flatnonzero(direct >= 0)
    distant = np.flatnonzero((direct < 0) & (sources != destinations))
    parts = [(direct_rows, Routes(np.arange(len(direct_rows) + 1), direct[direct_rows]))]
    chain = find_chain(topology, keys, first) if len(distant) else None
    if chain is not None:
        on_chain = _follow_chain(topology, chain, sources[distant], destinations[distant])
        parts.append((distant, on_chain))
        return joined_routes(len(sources), parts)
    # Searches from few sources replace many searches, one per destination.
    source_count, destination_count = (
        len(np.unique(ends[distant])) for ends in (sources, destinations)
    )
    if _DESTINATIONS_PER_SOURCE * source_count < destination_count:
        routes = find_routes_from_sources(topology, sources[distant], destinations[distant])
        if routes is not None:
            parts += [(distant[pairs], Routes(indptr, links)) for pairs, indptr, links in routes]
            return joined_routes(len(sources), parts)
    if len(distant):
        # Pairs of one destination share its search; a search covers a batch of destinations.
        distant = distant[np.argsort(destinations[distant], kind="stable")]
        goals, first = np.unique(destinations[distant], return_index=True)
        bounds = np.append(first, len(distant))
        batch = max(1, SEARCH_CELLS // max(topology.num_links, nodes))
        search = _RouteSearch(topology, batches=-(-len(goals) // batch))
        link_count = 0
        for start in range(0, len(goals), batch):
            stop = min(start + batch, len(goals))
            pairs = distant[bounds[start] : bounds[stop]]
            goal_of_pair = group_of_entry(bounds[start : stop + 1])
            parts.append((pairs, search.routes(goals[start:stop], goal_of_pair, sources[pairs])))
            link_count += len(parts[-1][1].links)
            check_link_count(topology, link_count)
    return joined_routes(len(sources), parts)


def joined_routes(count: int, parts: Sequence[tuple[Int64Array, Routes]]) -> Routes:
    """Combine routes of subsets of `count` pairs; pairs in no subset get an empty route.

    `parts`: (indices of pairs, their routes in this order) of each subset; no pair may repeat.
    """
    length = np.zeros(count, np.int64)
    for pairs, routes in parts:
        length[pairs] = np.diff(routes.indptr)
    indptr = row_pointer(length)
    links = np.empty(int(indptr[-1]), np.int64)
    for pairs, routes in parts:
        links[expanded_ranges(indptr[pairs], length[pairs])] = routes.links
    return Routes(indptr, links)


def _follow_chain(
    topology: Topology, chain: NpuChain, sources: Int64Array, destinations: Int64Array
) -> Routes:
    """Return the routes of pairs of NPUs along a ring or line, in their order.

    Raises `InputError` (`too-large`) if they have too many links (`check_link_count`).
    """
    counts, leads_up = chain.count_links(sources, destinations)
    check_link_count(topology, int(counts.sum()))
    return Routes(row_pointer(counts), chain.list_links(sources, counts, leads_up))


class _RouteSearch:
    """Shortest paths of one topology to a batch of goals.

    A breadth-first search runs backwards from the goals. A link is useful if it leads to a node one
    hop nearer to the goal. A path takes one useful link at every node, so it never needs to
    backtrack. Links are grouped by their source, in link order within a group.
    """

    def __init__(self, topology: Topology, batches: int) -> None:
        """Prepare backward searches from destinations in a topology of one plane (not checked).

        The links grouped by their source are computed once here and used by all searches.
        `batches`: the number of calls of `routes`, whose work must not be too large.
        """
        self._topology = topology
        self._batches = batches
        self._backwards = topology.arcs(backwards=True)
        self._links = self._backwards.entering

    def routes(self, goals: Int64Array, goal_of_path: Int64Array, sources: Int64Array) -> Routes:
        """Return a path of fewest links from `sources[i]` to `goals[goal_of_path[i]]`, for every i.

        A path from a node to itself is empty. If several links of a node are on such paths, an
        NPU takes the first in link order. A switch with n such links takes number d mod n, and d
        becomes d // n for the next switch; at first, d is the node number of the goal. Raises
        `InputError` (`disconnected`) for the first pair without a path, and (`too-large`) if this
        search, repeated for all batches, needs too many rounds.
        """
        distance = self._backwards.hops(goals)
        check_search_rounds(self._topology, int(distance.max()) * self._batches)
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
        """Return the links that bring a path nearer to its goal: (links, count, start), all int64.

        Node `node` has `count[goal, node]` such links for a goal; they are entries of `links` from
        `start[goal, node]` on, in the order of the node's links. `distance`: int32[goals, nodes],
        the number of links from every node to every goal, -1 without a path.
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
