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

# Cells of the (destination, node or link) tables that one step of the search holds in memory.
_SEARCH_CELLS = 1 << 20


@dataclass(frozen=True, slots=True)
class Routes:
    """One path a pair: its link rows, in order, are `links[indptr[i]:indptr[i + 1]]`; int64."""

    indptr: Int64Array
    links: Int64Array


def shortest_routes(topology: Topology, sources: Int64Array, destinations: Int64Array) -> Routes:
    """Routes of all pairs on a topology of one plane, as `Topology.routes` says."""
    direct = _direct_links(topology, sources, destinations)
    # Neighbours need no search; on fully connected networks that is every pair.
    near = np.flatnonzero(direct >= 0)
    distant = np.flatnonzero((direct < 0) & (sources != destinations))
    found = [(near, Routes(np.arange(len(near) + 1), direct[near]))]
    if len(distant):
        found += _distant_routes(topology, sources, destinations, distant)
    return joined_routes(len(sources), found)


def joined_routes(count: int, found: Sequence[tuple[Int64Array, Routes]]) -> Routes:
    """Routes of `count` pairs from parts with the routes of some; pairs in no part have none."""
    length = np.zeros(count, np.int64)
    for pairs, routes in found:
        length[pairs] = np.diff(routes.indptr)
    indptr = row_pointer(length)
    links = np.empty(int(indptr[-1]), np.int64)
    for pairs, routes in found:
        links[expanded_ranges(indptr[pairs], length[pairs])] = routes.links
    return Routes(indptr, links)


def _direct_links(topology: Topology, sources: Int64Array, destinations: Int64Array) -> Int64Array:
    """First link in link order from each source to its destination, -1 where there is none."""
    nodes = topology.num_nodes
    keys, first = np.unique(topology.source * nodes + topology.destination, return_index=True)
    # One more, to which -1 leads.
    return np.append(first, -1)[rows_of(sources * nodes + destinations, keys)]


def _distant_routes(
    topology: Topology, sources: Int64Array, destinations: Int64Array, pairs: Int64Array
) -> list[tuple[Int64Array, Routes]]:
    """Routes of `pairs` (indices of sources and destinations), in batches of destinations."""
    # Pairs of one destination share its search.
    pairs = pairs[np.argsort(destinations[pairs], kind="stable")]
    goals, first = np.unique(destinations[pairs], return_index=True)
    ends = np.append(first, len(pairs))
    search = _RouteSearch(topology)
    batch = max(1, _SEARCH_CELLS // max(topology.num_links, topology.num_nodes))
    found = []
    for start in range(0, len(goals), batch):
        stop = min(start + batch, len(goals))
        chosen = pairs[ends[start] : ends[stop]]
        goal_of_pair = group_of_entry(ends[start : stop + 1])
        routes = search.routes(goals[start:stop], goal_of_pair, sources[chosen])
        found.append((chosen, routes))
    return found


class _RouteSearch:
    """Shortest paths of one topology to a batch of goals.

    A search runs backwards from the goals, so that the links are grouped by their source, in link
    order within one; a link is useful if it leads one hop nearer to the goal. A path then takes at
    every node one of its useful links, and cannot go astray.
    """

    def __init__(self, topology: Topology) -> None:
        """Prepare the links of a topology of one plane."""
        self._topology = topology
        self._backwards = topology.arcs(backwards=True)
        self._links = self._backwards.entering

    def routes(self, goals: Int64Array, goal_of_path: Int64Array, sources: Int64Array) -> Routes:
        """Path i leads from `sources[i]` to `goals[goal_of_path[i]]`."""
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
        # One hop of all paths at a time; those that have arrived drop out.
        while len(path):
            goal = goal_of_path[path]
            # Only switches spread; an NPU keeps its first link, which on rings is ASTRA-sim's way.
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
        """Links on shortest paths, goal by goal and source by source.

        (links, count[goal, node], start[goal, node]): those of a node begin at `start`.
        """
        rows, tails, first = self._links
        tail = np.repeat(tails, run_lengths(first, len(rows)))
        behind = distance[:, self._topology.destination[rows]]
        is_useful = (behind >= 0) & (behind == distance[:, tail] - 1)
        count = np.zeros(distance.shape, np.int64)
        count[:, tails] = np.add.reduceat(is_useful, first, axis=1, dtype=np.int64)
        # Useful links are listed row by row of the (goal, link) table, so that counts add up.
        start = np.cumsum(count).reshape(count.shape) - count
        return rows[np.nonzero(is_useful)[1]], count, start
