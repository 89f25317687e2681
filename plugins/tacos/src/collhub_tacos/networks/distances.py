"""How far apart nodes are, in picoseconds and in links: shortest paths from many nodes at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.symmetry import Translations
from hub_core.columns import Arcs, Int64Array
from hub_core.model import Collective, CollectiveKind, InputError, format_ranks

# Twice this is still an int64, so that a link may be added to what is out of reach.
_FAR = 1 << 61
# Lengths over links that are held at once: 16 MiB.
_CELLS_AT_ONCE = 1 << 21
# Pairs of a member and a link up to which paths from all members are looked at.
_CELLS_FOR_ALL_PAIRS = 1 << 19
# From end to end there and back, and once more for each.
_SWEEPS = 4
_FROM_ROOT = frozenset({CollectiveKind.BROADCAST, CollectiveKind.SCATTER})
_TO_ROOT = frozenset({CollectiveKind.REDUCE, CollectiveKind.GATHER})


class ShortestPaths:
    """Lengths of shortest paths on weighted links, from any nodes to all."""

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
        """Lengths int64[sources, nodes], 2^61 or more where there is no way.

        By rounds over all links (Bellman 1958, Ford 1956), as many as the longest path has links.
        """
        length = np.full((len(sources), self._num_nodes), _FAR, np.int64)
        length[np.arange(len(sources)), sources] = 0
        while len(self._heads):
            # Links stand by head: one reduction takes the best of all links into a node.
            over_links = length[:, self._source] + self._weight
            reached = np.minimum.reduceat(over_links, self._first, axis=1)
            before = length[:, self._heads]
            shorter = np.minimum(before, reached)
            # No node came nearer: longer paths bring none nearer, either.
            if np.array_equal(shorter, before):
                break
            length[:, self._heads] = shorter
        return length

    def in_batches(self, sources: Int64Array) -> Iterator[Int64Array]:
        """Yield `lengths` for some of the sources at a time, which bounds the memory."""
        size = max(1, _CELLS_AT_ONCE // max(1, len(self._source)))
        for first in range(0, len(sources), size):
            yield self.lengths(sources[first : first + size])


def diameter_ps(
    collective: Collective, network: LinkNetwork, members: Int64Array, times: LinkTimes
) -> int:
    """Time from the first start to the last arrival on the longest shortest path that data takes.

    From or to the root, or between all members. In networks of many nodes and links the pairs are
    those that four sweeps from end to end find, which is less than the maximum in some networks,
    and the maximum on meshes.
    """
    source, destination = network.source, network.destination
    # Paths to the root are those from it on links that are turned round.
    if collective.kind in _TO_ROOT:
        source, destination = destination, source
    paths = ShortestPaths(network.num_nodes, source, destination, times.arrival)
    if collective.kind in _FROM_ROOT | _TO_ROOT:
        assert collective.root is not None
        from_root = paths.lengths(members[[collective.root]])
        return _longest(from_root[:, members])
    if len(members) * network.num_links <= _CELLS_FOR_ALL_PAIRS:
        return max(_longest(length[:, members]) for length in paths.in_batches(members))
    return _longest_by_sweeps(paths, members)


def _longest_by_sweeps(paths: ShortestPaths, members: Int64Array) -> int:
    """Longest path found by going to the farthest member, and on from there, four times."""
    found = 0
    # Any member will do: each sweep starts at a farther one.
    start = members[:1]
    for _ in range(_SWEEPS):
        length = paths.lengths(start)[:, members]
        found = max(found, _longest(length))
        # What cannot be reached is no end to start from.
        reachable = np.where(length < _FAR, length, -1)
        start = members[[int(np.argmax(reachable))]]
    return found


def _longest(length: Int64Array) -> int:
    """The greatest length of a path, of those that there are."""
    return int(np.max(length, where=length < _FAR, initial=0))


def total_hops(network: LinkNetwork, members: Int64Array) -> int:
    """Links on the shortest paths between all ordered pairs of members, in sum."""
    one_each = np.ones(network.num_links, np.int64)
    paths = ShortestPaths(network.num_nodes, network.source, network.destination, one_each)
    sources = members
    is_everyone = len(members) == network.num_nodes
    # Where the network looks alike from every node, the paths of one tell those of all.
    if is_everyone and Translations.of(network, members) is not None:
        sources = members[:1]
    hops = 0
    for length in paths.in_batches(sources):
        between = length[:, members]
        hops += int(np.sum(between, where=between < _FAR))
    return hops * (len(members) // len(sources))


Int32Array = npt.NDArray[np.int32]


def hops_from(network: LinkNetwork, node: int, *, both_ways: bool = False) -> Int32Array:
    """Minimum number of links from `node` to every node: int32[nodes], -1 without a path.

    `both_ways`: each link can be used in both directions.
    """
    source, destination = network.source, network.destination
    if both_ways:
        one, other = source, destination
        source = np.concatenate([one, other])
        destination = np.concatenate([other, one])
    hops: Int32Array = Arcs(network.num_nodes, source, destination).hops(np.asarray([node]))[0]
    return hops


def unreachable(network: LinkNetwork, source: int, destination: int) -> InputError:
    """Error for a pair of nodes without a way, to be raised by the caller."""
    name = network.topology.name
    cut = ", ".join(_names_of_reached(network, source))
    return InputError(
        f"topology {name}: NPU {source} cannot reach NPU {destination}: no link leaves {cut}",
        cure="add links, or choose NPUs that reach one another",
        code="disconnected",
    )


def _names_of_reached(network: LinkNetwork, node: int) -> list[str]:
    """NPUs that a node reaches, as one text, and each of the switches."""
    inside = np.flatnonzero(hops_from(network, node) >= 0)
    npus = inside[inside < network.num_npus].tolist()
    switches = inside[inside >= network.num_npus].tolist()
    word = "NPUs" if len(npus) > 1 else "NPU"
    names = [network.topology.node_name(switch) for switch in switches]
    return [f"{word} {format_ranks(npus)}", *names]
