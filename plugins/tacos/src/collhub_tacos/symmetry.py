"""Symmetries and distances of networks: translations, the transposed network, shortest paths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.link_network import LinkNetwork, LinkTimes, PathNetwork
from hub_core.columns import (
    Arcs,
    Int64Array,
    counted_positions,
    group_pointer,
    inverse,
    row_pointer,
)
from hub_core.model import Collective, CollectiveKind, InputError
from hub_core.network import Routes, Topology
from hub_core.network import unreachable_error as network_error

# Numbers with many divisors have thousands of shapes; regular networks match an early one.
_MAX_SHAPES = 1000
# The first and last nodes, where open dimensions differ, and some between.
_PROBED_NODES = 5


@dataclass(frozen=True, slots=True, eq=False)
class Translations:
    """Translations of a network onto itself: adding a node number, digit by digit modulo `moduli`.

    `difference`: int64[degree], destination minus source of each in-link of a node. `in_link`:
    int64[nodes, degree], the link with this difference at every node.
    """

    moduli: tuple[int, ...]
    difference: Int64Array
    in_link: Int64Array

    @classmethod
    def of(
        cls, network: LinkNetwork, origin: Int64Array, times: LinkTimes | None = None
    ) -> Translations | None:
        """Find translations that preserve links, chunks per node and, with `times`, the link times.

        A translation adds a fixed node number to every node, digit by digit modulo the sizes of a
        grid of the nodes. `origin`: node at which each chunk starts. Grids are tried in this order,
        at most `_MAX_SHAPES`:

        1. the declared dimensions of the network, if their product is the number of nodes
        2. the factorizations of the number of nodes into sizes of at least 2

        Returns the translations of the first grid for which every translation maps the network onto
        itself. Returns None if no grid qualifies, if the network has no links, or if two nodes have
        different numbers of incoming links or of chunks.
        """
        # Every node is mapped to every other, so all must have equal numbers of links and chunks.
        chunks_of_node = np.bincount(origin, minlength=network.num_nodes)
        if (
            not network.num_links
            or not _are_rows_equal(network.in_degree)
            or not _are_rows_equal(chunks_of_node)
        ):
            return None
        declared = tuple(dimension.size for dimension in network.topology.dimensions)
        shapes = (declared, *_generate_shapes(network.num_npus))
        fitting = [shape for shape in shapes if math.prod(shape) == network.num_npus]
        for shape in fitting[:_MAX_SHAPES]:
            translations = _find_translations(network, shape, times)
            if translations is not None:
                return translations
        return None

    def subtract(self, nodes: Int64Array, offsets: Int64Array) -> Int64Array:
        """Subtract `offsets` from `nodes`, digit by digit; arrays that numpy can broadcast."""
        return _subtract(nodes, offsets, self.moduli)

    def find_source(self, offset: int) -> int:
        """Return the node whose image under the translation by `offset` is node 0.

        That is the node -`offset`, dimension by dimension, each modulo its size.
        """
        node = self._negate(np.asarray([offset]))
        return int(node[0])

    def shift_cells(self, chunks_of_node: int) -> Int64Array:
        """Translate cells of each in-link's source to cells of the node: int64[in-links, cells].

        A cell is a chunk numbered relative to a node: cell `g * chunks_of_node + r` of a node is
        chunk r of the node that is g before it. Column x of in-link j is the number at the node of
        the chunk that is cell x at the source of j.
        """
        cells = np.arange(len(self.in_link) * chunks_of_node)
        back = self._negate(self.difference)
        offset = self.subtract(cells // chunks_of_node, back[:, None])
        return offset * chunks_of_node + cells % chunks_of_node

    def _negate(self, offsets: Int64Array) -> Int64Array:
        """Return the negated offsets."""
        return self.subtract(np.zeros(1, np.int64), offsets)


def _subtract(left: Int64Array, right: Int64Array, moduli: tuple[int, ...]) -> Int64Array:
    """Return left - right of node numbers, dimension by dimension, each modulo its size.

    `moduli`: the sizes, the first of which belongs to the dimension that changes fastest. Arrays
    are broadcast.
    """
    result = np.zeros(np.broadcast_shapes(left.shape, right.shape), np.int64)
    stride = 1
    for modulus in moduli:
        # Dimensions are cyclic, so no digit borrows from the next. The expression has no named
        # parts because numpy then works in place; these arrays may have millions of cells.
        result += (left // stride - right // stride) % modulus * stride
        stride *= modulus
    return result


def _generate_shapes(num_nodes: int) -> Iterator[tuple[int, ...]]:
    """Yield all shapes with dimensions of at least 2 whose product is `num_nodes`.

    The shape with one dimension comes first. All further ones are ordered by their first
    dimension, ascending; those with the same first dimension are ordered like the shapes of
    the remaining product. So 12 gives (12), (2, 6), (2, 2, 3), (2, 3, 2), (3, 4) and so on.
    One node has no shapes.
    """
    if num_nodes > 1:
        yield (num_nodes,)
    for first in range(2, num_nodes // 2 + 1):
        if num_nodes % first == 0:
            for following in _generate_shapes(num_nodes // first):
                yield (first, *following)


def _find_translations(
    network: LinkNetwork, moduli: tuple[int, ...], times: LinkTimes | None
) -> Translations | None:
    """Return the translations of one shape; None if they do not map the network to itself.

    `moduli`: the sizes of the cyclic dimensions, the fastest one first. A translation adds a node
    number to all nodes, dimension by dimension, each modulo its size. All nodes must have equally
    many incoming links.

    The translations map the network to itself if the differences node - source of the incoming
    links are the same at every node. With `times`, the busy and arrival times of the links with
    equal position must also be the same. The incoming links of a node are sorted by difference,
    then by number.
    """
    num_nodes = network.num_npus
    source = network.source.reshape(num_nodes, -1)
    # The differences of a few evenly spaced nodes exclude most shapes at little cost.
    few = np.unique(np.linspace(0, num_nodes - 1, _PROBED_NODES, dtype=np.int64))
    probed = _subtract(few[:, None], source[few], moduli)
    if not _are_rows_equal(np.sort(probed, axis=1)):
        return None
    nodes = np.arange(num_nodes)[:, None]
    difference = _subtract(nodes, source, moduli)
    # Sort the in-links of every node by difference.
    order = np.argsort(difference, axis=1, kind="stable")
    in_order = np.take_along_axis(difference, order, axis=1)
    in_link = network.indptr[:-1, None] + order
    columns = [in_order]
    if times is not None:
        columns += [times.busy[in_link], times.arrival[in_link]]
    if not all(_are_rows_equal(column) for column in columns):
        return None
    return Translations(moduli, in_order[0], in_link)


def _are_rows_equal(rows: Int64Array) -> bool:
    """Return whether all rows equal the first one; there must be at least one row."""
    return bool(np.all(rows == rows[0]))


def transpose_network(network: LinkNetwork) -> LinkNetwork:
    """Return a new network with every link, and every route over switches, reversed.

    Links and routes are sorted by their new destination, then by their new source. Parallel
    links keep their order. A switch that multicasts reduces in the result, and the reverse.
    The topology of the result has no dimensions; its node names and groups are kept.
    `network` is not modified.
    """
    topology = network.topology
    transposed = Topology(
        topology.name,
        topology.num_npus,
        topology.num_nodes,
        topology.destination.copy(),
        topology.source.copy(),
        topology.bandwidth_bytes_per_s.copy(),
        topology.latency_s.copy(),
        (),
        topology.node_names,
        topology.groups,
        # In reversed time a multicast is a reduction.
        multicast=topology.reduction,
        reduction=topology.multicast,
    )
    links = network.links if isinstance(network, PathNetwork) else network
    # Stable: parallel links keep their order.
    order = np.lexsort((links.destination, links.source))
    reversed_links = LinkNetwork.of_rows(transposed, links.row[order])
    if not isinstance(network, PathNetwork):
        return reversed_links
    opposite = inverse(order)
    # Sort arcs by their new destination, then by their new source, as `LinkNetwork` does.
    order = np.lexsort((network.destination, network.source))
    # The routes of the arcs `order`, each reversed over the opposite links.
    lengths = np.diff(network.paths.indptr)[order]
    last = network.paths.indptr[1:][order] - 1
    backwards = np.repeat(last, lengths) - counted_positions(lengths)
    paths = Routes(row_pointer(lengths), opposite[network.paths.links[backwards]])
    return PathNetwork(
        topology=reversed_links.topology,
        num_npus=network.num_npus,
        num_nodes=network.num_nodes,
        indptr=group_pointer(network.source[order], network.num_nodes),
        source=network.destination[order],
        row=reversed_links.row[paths.links[paths.indptr[:-1]]],
        links=reversed_links,
        paths=paths,
    )


def is_duplex(network: LinkNetwork, times: LinkTimes) -> bool:
    """Return whether every link has an opposite link with equal `busy` and `arrival` times.

    If so, the network is equal to its transpose. True without links. False for networks
    with switches, where the two directions may share other links.
    """
    opposite = find_opposite_links(network, network)
    if isinstance(network, PathNetwork) or np.any(opposite < 0):
        return False
    is_busy_equal = np.array_equal(times.busy, times.busy[opposite])
    return is_busy_equal and np.array_equal(times.arrival, times.arrival[opposite])


def find_opposite_links(network: LinkNetwork, other_network: LinkNetwork) -> Int64Array:
    """Return the link v -> u of `other_network` for every link u -> v of `network`: int64[links].

    It is -1 if there is no such link, and the first one if there are several.
    """
    # Links are sorted by destination, then by source, so these keys ascend.
    key = other_network.destination * other_network.num_nodes + other_network.source
    opposite_key = network.source * network.num_nodes + network.destination
    if not len(key):
        return np.full(len(opposite_key), -1, np.int64)
    link = np.minimum(np.searchsorted(key, opposite_key), len(key) - 1)
    return np.where(key[link] == opposite_key, link, -1)


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
        """Return the lengths of shortest paths, i.e. sums of link weights: int64[sources, nodes].

        The path from a node to itself has length 0. A length of 2^61 or more means that there is no
        path. All links are relaxed in rounds until no length decreases (Bellman 1958, Ford 1956).
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
        """Yield the path lengths of `lengths` for successive parts of `sources`.

        Each array is int64[sources of the part, nodes]. A part has as many sources as fit into 16
        MiB with one number per source and link, at least one. Yields nothing without sources.
        """
        size = max(1, _MAX_CELLS_IN_MEMORY // max(1, len(self._source)))
        for first in range(0, len(sources), size):
            yield self.lengths(sources[first : first + size])


def compute_diameter_ps(
    collective: Collective, network: LinkNetwork, members: Int64Array, times: LinkTimes
) -> int:
    """Return the time in ps of the longest shortest path that data must take; 0 without any path.

    `members`: NPU of each rank, at least one. The length of a path is the sum of the arrival times
    of its links; it may pass any nodes. Pairs without a path are ignored. The paths are:

    - broadcast, scatter: from the root to all members
    - reduce, gather: from all members to the root
    - all other kinds: between all pairs of members

    For all pairs, the result is only a lower limit if members times links exceed 2^19. Then the
    paths from four members are considered. The first one is `members[0]`. Each next one is the
    member farthest from the previous one (unreachable members do not count; ties: the lowest
    rank). On meshes this gives the exact maximum. Raises `AssertionError` if a kind with a root
    has none.
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
    # Four sweeps, each from the farthest member of the last one.
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
    """Return the maximum of the lengths that belong to existing paths, 0 without any."""
    return int(np.max(length, where=length < _UNREACHABLE, initial=0))


def count_total_hops(network: LinkNetwork, members: Int64Array) -> int:
    """Count the links on the shortest paths between all ordered pairs of members.

    A pair counts the fewest links of any path from its first to its second member; paths may
    pass any nodes. A pair without a path counts 0. If all nodes are members and
    `Translations.of` finds translations of the network onto itself, the sum for one node is
    multiplied by the number of nodes. There must be at least one member.
    """
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
    """Return the smallest number of links from a node to every node: int32[nodes].

    It is -1 without a path. With `both_ways`, each link can be used in both directions.
    """
    source, destination = network.source, network.destination
    if both_ways:
        tail, head = source, destination
        source = np.concatenate([tail, head])
        destination = np.concatenate([head, tail])
    hops: Int32Array = Arcs(network.num_nodes, source, destination).hops(np.asarray([node]))[0]
    return hops


def unreachable_error(network: LinkNetwork, source: int, destination: int) -> InputError:
    """Return the error (`disconnected`) that `destination` cannot be reached from `source`.

    The message names both nodes and all nodes that `source` reaches over links of
    `network`. These can differ from the links of its topology, for example if the network
    is transposed.
    """
    reached = hops_from(network, source) >= 0
    return network_error(network.topology, source, destination, reached)
