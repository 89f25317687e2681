"""How far apart nodes are, in picoseconds and in links: shortest ways from many nodes at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.translation import Translations
from hub_core.collectives import Collective, CollectiveKind

Int64Array = npt.NDArray[np.int64]

_FAR = 1 << 61
_CELLS_AT_ONCE = 1 << 21
_CELLS_FOR_ALL_PAIRS = 1 << 19
_SWEEPS = 4
_FROM_ROOT = frozenset({CollectiveKind.BROADCAST, CollectiveKind.SCATTER})
_TO_ROOT = frozenset({CollectiveKind.REDUCE, CollectiveKind.GATHER})


class ShortestPaths:
    """Shortest ways on weighted links, from any nodes to all."""

    def __init__(
        self, num_nodes: int, source: Int64Array, destination: Int64Array, weight: Int64Array
    ) -> None:
        order = np.argsort(destination, kind="stable")
        self._num_nodes, self._source, self._weight = num_nodes, source[order], weight[order]
        self._heads, self._first = np.unique(destination[order], return_index=True)

    def lengths(self, sources: Int64Array) -> Int64Array:
        """int64[sources, nodes], 2^61 or more where there is no way; by rounds over all links (Bellman, Ford)."""
        length = np.full((len(sources), self._num_nodes), _FAR, np.int64)
        length[np.arange(len(sources)), sources] = 0
        while len(self._heads):
            reached = np.minimum.reduceat(
                length[:, self._source] + self._weight, self._first, axis=1
            )
            shorter = np.minimum(length[:, self._heads], reached)
            if np.array_equal(shorter, length[:, self._heads]):
                break
            length[:, self._heads] = shorter
        return length

    def in_batches(self, sources: Int64Array) -> Iterator[Int64Array]:
        """`lengths`, for some of the sources at a time."""
        size = max(1, _CELLS_AT_ONCE // max(1, len(self._source)))
        for first in range(0, len(sources), size):
            yield self.lengths(sources[first : first + size])


def diameter_ps(
    collective: Collective, network: LinkNetwork, members: Int64Array, times: LinkTimes
) -> int:
    """Time from the first start to the last arrival on the longest of the shortest ways that data must go.

    From or to the root, or between all members. In networks of many nodes and links the pairs are those that four sweeps
    from end to end find, which is less than the maximum in some networks, and the maximum on meshes.
    """
    forward = (network.source, network.destination)
    source, destination = forward[::-1] if collective.kind in _TO_ROOT else forward
    ways = ShortestPaths(network.num_nodes, source, destination, times.arrival)
    if collective.kind in _FROM_ROOT | _TO_ROOT:
        assert collective.root is not None
        return _longest(ways.lengths(members[[collective.root]])[:, members])
    if len(members) * network.num_links <= _CELLS_FOR_ALL_PAIRS:
        return max(_longest(length[:, members]) for length in ways.in_batches(members))
    found, start = 0, members[:1]
    for _ in range(_SWEEPS):
        length = ways.lengths(start)[:, members]
        found = max(found, _longest(length))
        start = members[[int(np.argmax(np.where(length < _FAR, length, -1)))]]
    return found


def _longest(length: Int64Array) -> int:
    return int(np.max(length, where=length < _FAR, initial=0))


def total_hops(network: LinkNetwork, members: Int64Array) -> int:
    """Links on the shortest ways between all ordered pairs of members, in sum."""
    ways = ShortestPaths(
        network.num_nodes, network.source, network.destination, np.ones(network.num_links, np.int64)
    )
    sources = members
    if len(members) == network.num_nodes and Translations.of(network, members) is not None:
        sources = members[:1]
    hops = sum(
        int(np.sum(length[:, members], where=length[:, members] < _FAR))
        for length in ways.in_batches(sources)
    )
    return hops * (len(members) // len(sources))
