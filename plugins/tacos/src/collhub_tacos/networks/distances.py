"""Shortest paths: distances in picoseconds or links, the diameter, and unreachable nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.symmetry import Translations
from hub_core.columns import Arcs, Int64Array
from hub_core.model import Collective, CollectiveKind, InputError, format_ranks

# Twice this value still fits in int64, so a link can be added to an unreachable distance.
_UNREACHABLE = 1 << 61
# Maximum number of path lengths in memory: 16 MiB.
_MAX_CELLS_IN_MEMORY = 1 << 21
# Maximum number of (member, link) pairs for paths from all members.
_MAX_CELLS_FOR_ALL_PAIRS = 1 << 19
# Each sweep starts at the farthest member of the previous one.
_SWEEPS = 4
_FROM_ROOT = frozenset({CollectiveKind.BROADCAST, CollectiveKind.SCATTER})
_TO_ROOT = frozenset({CollectiveKind.REDUCE, CollectiveKind.GATHER})


class ShortestPaths:
    """Lengths of shortest paths on weighted links, from given nodes to all nodes."""

    def __init__(
        self,
        num_nodes: int,
        source: Int64Array,
        destination: Int64Array,
        weight: Int64Array,
    ) -> None:
        order = np.argsort(destination, kind="stable")
        self._num_nodes = num_nodes
        self._source = source[order]
        self._weight = weight[order]
        self._heads, self._first = np.unique(destination[order], return_index=True)

    def lengths(self, sources: Int64Array) -> Int64Array:
        """Return the lengths, int64[sources, nodes]; 2^61 or more if there is no path.

        Computed in rounds over all links (Bellman 1958, Ford 1956), as many as the longest path has
        links.
        """
        length = np.full((len(sources), self._num_nodes), _UNREACHABLE, np.int64)
        length[np.arange(len(sources)), sources] = 0
        while len(self._heads):
            # Links are sorted by head, so one reduction finds the best link into every node.
            over_links = length[:, self._source] + self._weight
            reached = np.minimum.reduceat(over_links, self._first, axis=1)
            previous = length[:, self._heads]
            shorter = np.minimum(previous, reached)
            # No distance decreased, so longer paths cannot decrease one either.
            if np.array_equal(shorter, previous):
                break
            length[:, self._heads] = shorter
        return length

    def in_batches(self, sources: Int64Array) -> Iterator[Int64Array]:
        """Yield `lengths` for some of the sources at a time, to limit the memory."""
        size = max(1, _MAX_CELLS_IN_MEMORY // max(1, len(self._source)))
        for first in range(0, len(sources), size):
            yield self.lengths(sources[first : first + size])


def compute_diameter_ps(
    collective: Collective, network: LinkNetwork, members: Int64Array, times: LinkTimes
) -> int:
    """Return the time of the longest shortest path that data take, in picoseconds.

    Paths are from or to the root, or between all members. In large networks only the pairs found by
    four sweeps are considered: the maximum on meshes, and possibly less on other networks.
    """
    source, destination = network.source, network.destination
    # Paths to the root are paths from the root on reversed links.
    if collective.kind in _TO_ROOT:
        source, destination = destination, source
    paths = ShortestPaths(network.num_nodes, source, destination, times.arrival)
    if collective.kind in _FROM_ROOT | _TO_ROOT:
        assert collective.root is not None
        from_root = paths.lengths(members[[collective.root]])
        return _find_longest(from_root[:, members])
    if len(members) * network.num_links <= _MAX_CELLS_FOR_ALL_PAIRS:
        return max(_find_longest(length[:, members]) for length in paths.in_batches(members))
    return _find_longest_by_sweeps(paths, members)


def _find_longest_by_sweeps(paths: ShortestPaths, members: Int64Array) -> int:
    """Return the longest path found by four sweeps, each to the farthest member of the last."""
    longest = 0
    # Any member is a valid start; each sweep starts farther away.
    start = members[:1]
    for _ in range(_SWEEPS):
        length = paths.lengths(start)[:, members]
        longest = max(longest, _find_longest(length))
        # Unreachable members are not starts.
        reachable = np.where(length < _UNREACHABLE, length, -1)
        start = members[[int(np.argmax(reachable))]]
    return longest


def _find_longest(length: Int64Array) -> int:
    """Return the maximum length of the existing paths."""
    return int(np.max(length, where=length < _UNREACHABLE, initial=0))


def count_total_hops(network: LinkNetwork, members: Int64Array) -> int:
    """Count the links on the shortest paths between all ordered pairs of members."""
    ones = np.ones(network.num_links, np.int64)
    paths = ShortestPaths(network.num_nodes, network.source, network.destination, ones)
    sources = members
    are_all_nodes = len(members) == network.num_nodes
    # If all nodes are equivalent, the paths of one node represent those of all.
    if are_all_nodes and Translations.of(network, members) is not None:
        sources = members[:1]
    hops = 0
    for length in paths.in_batches(sources):
        between = length[:, members]
        hops += int(np.sum(between, where=between < _UNREACHABLE))
    return hops * (len(members) // len(sources))


Int32Array = npt.NDArray[np.int32]


def hops_from(network: LinkNetwork, node: int, *, both_ways: bool = False) -> Int32Array:
    """Minimum number of links from `node` to every node: int32[nodes], -1 without a path.

    `both_ways`: each link can be used in both directions.
    """
    source, destination = network.source, network.destination
    if both_ways:
        tail, head = source, destination
        source = np.concatenate([tail, head])
        destination = np.concatenate([head, tail])
    hops: Int32Array = Arcs(network.num_nodes, source, destination).hops(np.asarray([node]))[0]
    return hops


def unreachable_error(network: LinkNetwork, source: int, destination: int) -> InputError:
    """Return the error for a pair of nodes without a path, to be raised by the caller."""
    name = network.topology.name
    cut = ", ".join(_name_reached_nodes(network, source))
    return InputError(
        f"topology {name}: NPU {source} cannot reach NPU {destination}: no link leaves {cut}",
        cure="add links, or choose NPUs that reach one another",
        code="disconnected",
    )


def _name_reached_nodes(network: LinkNetwork, node: int) -> list[str]:
    """Return the names of the reached nodes: one text for all NPUs, and every switch."""
    reached = np.flatnonzero(hops_from(network, node) >= 0)
    npus = reached[reached < network.num_npus].tolist()
    switches = reached[reached >= network.num_npus].tolist()
    word = "NPUs" if len(npus) > 1 else "NPU"
    names = [network.topology.node_name(switch) for switch in switches]
    return [f"{word} {format_ranks(npus)}", *names]
