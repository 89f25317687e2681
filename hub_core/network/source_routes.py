"""Routes from few sources to many destinations, with one search per source.

The result is that of searches per destination (`shortest_routes`): a link is on a shortest path to
the destination if it is on one from the source, and the destination is reached after it. The nodes
before a destination are collected backwards, hop by hop, for many pairs at once. Searches of both
kinds have the limits at the end of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, csr, distinct, gather, row_pointer
from hub_core.model.diagnostics import InputError

if TYPE_CHECKING:
    from hub_core.network.topology import Topology

# Maximum number of cells of the (start, node or link) tables of one search step.
SEARCH_CELLS = 1 << 20
# Pairs whose paths are collected at once.
_PAIRS_AT_ONCE = 1024
# Links of all routes of a call, which take up to 24 bytes each; and rounds of its searches, which
# take 50 us or more each.
_MAX_LINKS, _MAX_ROUNDS = 200_000_000, 1 << 20


def find_routes_from_sources(
    topology: Topology, sources: Int64Array, destinations: Int64Array
) -> list[tuple[Int64Array, Int64Array, Int64Array]] | None:
    """Return the routes of pairs in batches, or None if any pair has no path.

    `sources`, `destinations`: int64, one node of each pair. The topology must have one plane. A
    batch is (pairs, row pointer, links). `pairs` are indices in `sources`. The links of entry k of
    `pairs` are `links[pointer[k]:pointer[k + 1]]`, from the source on. Equal ends give no links.

    Pairs are sorted by source, then by index, over all batches. A batch has at most 1024 pairs
    (`_PAIRS_AT_ONCE`) and may have several sources. One breadth-first search covers at most max(1,
    `SEARCH_CELLS` // nodes) sources, and a batch has no others. The result is [] without pairs.
    `_trace_paths` chooses one of several shortest paths. Raises `InputError` (`too-large`) as
    `check_link_count` and `check_search_rounds` do.
    """
    origins, origin = np.unique(sources, return_inverse=True)
    by_origin = np.argsort(origin, kind="stable")
    arcs = topology.arcs()
    entering = csr(topology.destination, np.arange(topology.num_links), topology.num_nodes)
    at_once = max(1, SEARCH_CELLS // topology.num_nodes)
    batches = -(-len(origins) // at_once) + len(sources) // _PAIRS_AT_ONCE
    routes = []
    link_count = 0
    for first in range(0, len(origins), at_once):
        batch = origins[first : first + at_once]
        distance = arcs.hops(batch)
        check_search_rounds(topology, int(distance.max()) * batches)
        start, stop = np.searchsorted(origin[by_origin], [first, first + len(batch)])
        searched = by_origin[start:stop]
        if bool((distance[origin[searched] - first, destinations[searched]] < 0).any()):
            return None
        for begin in range(0, len(searched), _PAIRS_AT_ONCE):
            pairs = searched[begin : begin + _PAIRS_AT_ONCE]
            row, ends = origin[pairs] - first, (sources[pairs], destinations[pairs])
            routes.append((pairs, *_trace_paths(topology, entering, distance, row, *ends)))
            link_count += len(routes[-1][2])
            check_link_count(topology, link_count)
    return routes


def _trace_paths(
    topology: Topology,
    entering: tuple[Int64Array, Int64Array],
    distance: npt.NDArray[np.int32],
    row: Int64Array,
    sources: Int64Array,
    destinations: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Return the routes of pairs as (row pointer, links), int64; every pair must have a path.

    `distance`: int32[sources, nodes], hops from every searched source; `row`: the row of each pair
    in it. `entering`: links that enter each node, as a CSR table. Links are chosen along the path
    from the source. Of several links on shortest paths, an NPU takes the first in link order. A
    switch with n such links takes number d mod n, and d becomes d // n for the next switch; d
    begins as the node number of the destination.
    """
    nodes, num_links = topology.num_nodes, topology.num_links
    length = distance[row, destinations].astype(np.int64)
    # Links of all shortest paths by hop, collected from the destinations back: (keys, links), by
    # key, then by link. A key is pair * nodes + tail of the link.
    levels: list[tuple[Int64Array, Int64Array]] = []
    ends = np.arange(len(destinations)) * nodes + destinations
    frontier = np.zeros(0, np.int64)
    for hop in range(int(length.max(initial=0)), 0, -1):
        frontier = distinct(np.concatenate([frontier, ends[length == hop]]))
        pair, node = np.divmod(frontier, nodes)
        pair = np.repeat(pair, np.diff(entering[0])[node])
        entered = gather(*entering, node)
        tail = topology.source[entered]
        is_before = distance[row[pair], tail] == hop - 1
        order = (pair[is_before] * nodes + tail[is_before]) * num_links + entered[is_before]
        keys, link_of_key = np.divmod(np.sort(order), num_links)
        levels.append((keys, link_of_key))
        frontier = distinct(keys)

    indptr = row_pointer(length)
    links = np.empty(int(indptr[-1]), np.int64)
    path, node, digits = np.arange(len(sources)), sources, destinations
    for hop, (keys, link_of_key) in enumerate(reversed(levels)):
        going = length[path] > hop
        path, node, digits = path[going], node[going], digits[going]
        key = path * nodes + node
        start = np.searchsorted(keys, key)
        ties = np.searchsorted(keys, key, side="right") - start
        # Only switches spread paths; an NPU uses its first link.
        digits, choice = np.divmod(digits, np.where(node >= topology.num_npus, ties, 1))
        link = link_of_key[start + choice]
        links[indptr[path] + hop] = link
        node = topology.destination[link]
    return indptr, links


def check_link_count(topology: Topology, count: int) -> None:
    """Raise `InputError` (`too-large`) for routes with more than 200 million links in all."""
    if count > _MAX_LINKS:
        raise InputError(
            f"topology {topology.name}: the routes of all messages have {count} links or more, "
            f"which are too many (limit {_MAX_LINKS})",
            cure="choose fewer NPUs, or an algorithm of messages between neighbours",
            code="too-large",
        )


def check_search_rounds(topology: Topology, rounds: int) -> None:
    """Raise `InputError` (`too-large`) for searches of more than 2^20 rounds in all.

    `rounds`: an estimate from the first search, the links from its nodes to the farthest node times
    the number of searches.
    """
    if rounds > _MAX_ROUNDS:
        raise InputError(
            f"topology {topology.name}: the search of the routes of all messages takes about "
            f"{rounds} rounds, which are too many (limit {_MAX_ROUNDS})",
            cure="choose fewer NPUs, or a network of shorter paths, such as a torus of equal sides",
            code="too-large",
        )
