"""Routes on rings and lines of NPUs from the positions of the NPUs, without a search.

A search takes one round per link of the longest path: on a ring of many NPUs that is too slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hub_core.columns import BoolArray, Int64Array, expanded_ranges, inverse, rows_of, run_starts

if TYPE_CHECKING:
    from hub_core.network.topology import Topology


@dataclass(frozen=True, slots=True)
class NpuChain:
    """All NPUs of a network in the order of a ring or a line, with links in both directions.

    `position`: int64[NPUs], 0, 1, ... along the chain. `up`: int64[NPUs], the first link in link
    order from the NPU at each position to the one at the next position. `down`: the same to the one
    at the previous position. In a ring, position 0 follows the last position; in a line, the last
    entry of `up` and the first one of `down` are -1.
    """

    position: Int64Array
    up: Int64Array
    down: Int64Array
    is_ring: bool

    def count_links(
        self, sources: Int64Array, destinations: Int64Array
    ) -> tuple[Int64Array, BoolArray]:
        """Return the number of links of the shortest path of each pair, and whether it leads up.

        Both results have one entry per pair; equal ends have 0 links. Of two equally short paths on
        a ring, the one whose first link is earlier in link order is taken.
        """
        start = self.position[sources]
        distance = self.position[destinations] - start
        if not self.is_ring:
            return np.abs(distance), distance > 0
        upwards = distance % len(self.position)
        downwards = len(self.position) - upwards
        is_first = self.up[start] < self.down[start]
        leads_up: BoolArray = (upwards < downwards) | ((upwards == downwards) & is_first)
        return np.minimum(upwards, downwards), leads_up

    def list_links(
        self, sources: Int64Array, counts: Int64Array, leads_up: BoolArray
    ) -> Int64Array:
        """Return the links of paths from `sources`, path by path, each from its source on: int64.

        `counts`: number of links of each path. `leads_up`: whether it follows increasing positions.
        """
        size = len(self.position)
        # Two rounds in each direction, so that the links of each path are consecutive.
        links = np.concatenate([np.tile(self.up, 2), np.tile(self.down[::-1], 2)])
        start = self.position[sources]
        first = np.where(leads_up, start, 3 * size - 1 - start)
        return links[expanded_ranges(first, counts)]


def find_chain(topology: Topology, pairs: Int64Array, first_links: Int64Array) -> NpuChain | None:
    """Return the NPUs as one ring or line if this is the entire network, otherwise None.

    Each NPU must have links to exactly its one or two neighbours on the chain, in both directions;
    parallel links are permitted, switches are not. `pairs`: int64, source * nodes + destination of
    all links, each number once, ascending. `first_links`: int64, the first link of each in link
    order. Positions begin at the NPU of lowest number: in a line, at the end of lower number.
    """
    size = topology.num_nodes
    source, destination = np.divmod(pairs, size)
    degree = np.bincount(source, minlength=size)
    ends = np.flatnonzero(degree == 1)
    is_chain = int(degree.min()) >= 1 and int(degree.max()) <= 2 and len(ends) in (0, 2)
    if not is_chain or topology.num_npus < size:
        return None
    if not np.array_equal(np.sort(destination * size + source), pairs):
        return None
    order = _follow_neighbours(source, destination, int(ends[0]) if len(ends) else 0)
    if len(order) < size:
        return None
    # The index -1 of a missing pair selects the appended -1.
    link_of_pair = np.append(first_links, -1)
    up, down = (
        link_of_pair[rows_of(order * size + np.roll(order, shift), pairs)] for shift in (-1, 1)
    )
    if len(ends):
        # A line of two NPUs has links between its last and its first NPU.
        up[-1] = down[0] = -1
    return NpuChain(inverse(order), up, down, is_ring=not len(ends))


def _follow_neighbours(source: Int64Array, destination: Int64Array, start: int) -> Int64Array:
    """Return the nodes that are visited from `start` without turning round, each once: int64.

    `source`, `destination`: int64, the distinct pairs of neighbours, in order; every node has one
    or two, and is a neighbour of its neighbours. The path begins at the neighbour of lower number,
    and ends at a node with one neighbour, or before it returns to `start`.
    """
    first = run_starts(source)
    lower = destination[first].tolist()
    higher = destination[np.append(first[1:], len(source)) - 1].tolist()
    order, previous, node = [start], -1, start
    while True:
        following = higher[node] if lower[node] == previous else lower[node]
        if following in (start, previous):
            return np.asarray(order, np.int64)
        order.append(following)
        previous, node = node, following
