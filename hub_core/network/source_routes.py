"""Routes from few sources to many destinations, with one search per source.

The result is that of searches per destination (`shortest_routes`): a link is on a shortest path to
the destination if it is on one from the source, and the destination is reached after it. The nodes
before a destination are collected backwards, hop by hop, for many pairs at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, csr, distinct, gather, row_pointer

if TYPE_CHECKING:
    from hub_core.network.topology import Topology

# Pairs whose paths are collected at once.
_PAIRS_AT_ONCE = 1024


def find_routes_from_sources(
    topology: Topology, sources: Int64Array, destinations: Int64Array
) -> tuple[Int64Array, Int64Array] | None:
    """Return the routes of pairs as (row pointer, links), None if a pair has no path.

    The topology has one plane. Cost: a breadth-first search per source, and for every pair the
    links of all its shortest paths.
    """
    origins, origin = np.unique(sources, return_inverse=True)
    distance = topology.arcs().hops(origins)
    length = distance[origin, destinations].astype(np.int64)
    if bool((length < 0).any()):
        return None
    indptr = row_pointer(length)
    links = np.empty(int(indptr[-1]), np.int64)
    entering = csr(topology.destination, np.arange(topology.num_links), topology.num_nodes)
    borders = [*range(0, len(sources), _PAIRS_AT_ONCE), len(sources)]
    for first, stop in pairwise(borders):
        pairs = slice(first, stop)
        own_distance = distance[origin[pairs]]
        levels = _collect_links(topology, entering, own_distance, destinations[pairs])
        node, digits = sources[pairs], destinations[pairs]
        path = np.arange(stop - first)
        for hop, (keys, link_of_key) in enumerate(levels):
            going = length[first + path] > hop
            path, node, digits = path[going], node[going], digits[going]
            key = path * topology.num_nodes + node
            start = np.searchsorted(keys, key)
            ties = np.searchsorted(keys, key, side="right") - start
            # Only switches spread paths; an NPU uses its first link.
            digits, choice = np.divmod(digits, np.where(node >= topology.num_npus, ties, 1))
            link = link_of_key[start + choice]
            links[indptr[first + path] + hop] = link
            node = topology.destination[link]
    return indptr, links


def _collect_links(
    topology: Topology,
    entering: tuple[Int64Array, Int64Array],
    distance: npt.NDArray[np.int32],
    destinations: Int64Array,
) -> list[tuple[Int64Array, Int64Array]]:
    """Return the links of all shortest paths of pairs, by hop: (pair * nodes + tail, link).

    Sorted by both. `entering`: links that enter a node, as CSR table. `distance`: hops from the
    source of a pair to every node, [pairs, nodes].
    """
    nodes, num_links = topology.num_nodes, topology.num_links
    length = distance[np.arange(len(destinations)), destinations]
    ends = np.arange(len(destinations)) * nodes + destinations
    levels = []
    frontier = np.zeros(0, np.int64)
    for hop in range(int(length.max(initial=0)), 0, -1):
        frontier = distinct(np.concatenate([frontier, ends[length == hop]]))
        pair, node = np.divmod(frontier, nodes)
        pair = np.repeat(pair, np.diff(entering[0])[node])
        links = gather(*entering, node)
        tail = topology.source[links]
        is_before = distance[pair, tail] == hop - 1
        keys = (pair[is_before] * nodes + tail[is_before]) * num_links + links[is_before]
        keys, links = np.divmod(np.sort(keys), num_links)
        levels.append((keys, links))
        frontier = distinct(keys)
    return levels[::-1]
