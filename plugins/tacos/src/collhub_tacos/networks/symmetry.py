"""Symmetries of networks: translations onto themselves, and the transposed network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.switches import PathNetwork
from hub_core.columns import Int64Array, counted_positions, group_pointer, row_pointer
from hub_core.network import Routes, Topology

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
        """Find translations that preserve links, chunks per node and, if given, link times.

        Tried are the declared dimensions of a regular network, then all factorizations of the
        number of nodes. None if there is no such translation.
        """
        # Every node is mapped to every other, so all must have equal numbers of links and chunks.
        chunks_of_node = np.bincount(origin, minlength=network.num_nodes)
        if (
            not network.num_links
            or not _are_rows_equal(network.in_degree)
            or not _are_rows_equal(chunks_of_node)
        ):
            return None
        for shape in islice(_generate_candidate_shapes(network), _MAX_SHAPES):
            translations = _find_translations(network, shape, times)
            if translations is not None:
                return translations
        return None

    def subtract(self, nodes: Int64Array, offsets: Int64Array) -> Int64Array:
        """Subtract `offsets` from `nodes`, digit by digit; arrays that numpy can broadcast."""
        return _subtract(nodes, offsets, self.moduli)

    def find_source(self, offset: int) -> int:
        """Return the node whose chunks reach node 0 by a translation by `offset`."""
        node = self._negate(np.asarray([offset]))
        return int(node[0])

    def shift_cells(self, chunks_of_node: int) -> Int64Array:
        """Return the cell at a node of each cell of an in-link's source: int64[degree, cells].

        Cell `g * chunks_per_node + r` is chunk r of the node at offset -g. The columns are the
        cells as numbered at the source of an in-link; the values are their numbers at the node.
        """
        cells = np.arange(len(self.in_link) * chunks_of_node)
        back = self._negate(self.difference)
        offset = self.subtract(cells // chunks_of_node, back[:, None])
        return offset * chunks_of_node + cells % chunks_of_node

    def _negate(self, offsets: Int64Array) -> Int64Array:
        """Return the negated offsets."""
        return self.subtract(np.zeros(1, np.int64), offsets)


def _subtract(left: Int64Array, right: Int64Array, moduli: tuple[int, ...]) -> Int64Array:
    """Subtract nodes dimension by dimension, each modulo its size."""
    result = np.zeros(np.broadcast_shapes(left.shape, right.shape), np.int64)
    stride = 1
    for modulus in moduli:
        # Dimensions are cyclic, so no digit borrows from the next. The expression has no named
        # parts because numpy then works in place; these arrays may have millions of cells.
        result += (left // stride - right // stride) % modulus * stride
        stride *= modulus
    return result


def _generate_candidate_shapes(network: LinkNetwork) -> Iterator[tuple[int, ...]]:
    """Yield the declared dimensions, then all other shapes with this number of nodes."""
    declared = tuple(dimension.size for dimension in network.topology.dimensions)
    for shape in (declared, *_generate_shapes(network.num_npus)):
        if math.prod(shape) == network.num_npus:
            yield shape


def _generate_shapes(num_nodes: int) -> Iterator[tuple[int, ...]]:
    """Yield all shapes with dimensions of at least 2 whose product is `num_nodes`.

    Among shapes with the same beginning, those with fewer dimensions come first.
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
    """Return the translations of one shape, None if they do not map the network to itself."""
    num_nodes = network.num_npus
    source = network.source.reshape(num_nodes, -1)
    if _fails_at_probed_nodes(source, moduli):
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


def _fails_at_probed_nodes(source: Int64Array, moduli: tuple[int, ...]) -> bool:
    """Whether a few nodes already differ, which excludes most shapes much faster."""
    last = len(source) - 1
    few = np.unique(np.linspace(0, last, _PROBED_NODES, dtype=np.int64))
    difference = _subtract(few[:, None], source[few], moduli)
    return not _are_rows_equal(np.sort(difference, axis=1))


def _are_rows_equal(rows: Int64Array) -> bool:
    """Whether all rows equal the first; there must be at least one row."""
    return bool(np.all(rows == rows[0]))


def transpose_network(network: LinkNetwork) -> LinkNetwork:
    """Return the network with every link reversed; routes over switches are reversed, too."""
    reversed_links = LinkNetwork.of(_transpose_topology(network.topology))
    if not isinstance(network, PathNetwork):
        return reversed_links
    # Sort arcs by their new destination, then by their new source, as `LinkNetwork` does.
    order = np.lexsort((network.destination, network.source))
    paths = _reverse_paths(network, reversed_links, order)
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


def _transpose_topology(topology: Topology) -> Topology:
    """Return the topology with source and destination exchanged; its dimensions are removed.

    In reversed time a multicast is a reduction.
    """
    return Topology(
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
        multicast=topology.reduction,
        reduction=topology.multicast,
    )


def _reverse_paths(network: PathNetwork, reversed_links: LinkNetwork, order: Int64Array) -> Routes:
    """Return the routes of the arcs `order`, each reversed over the opposite links."""
    lengths = np.diff(network.paths.indptr)[order]
    last = network.paths.indptr[1:][order] - 1
    backwards = np.repeat(last, lengths) - counted_positions(lengths)
    opposite = find_opposite_links(network.links, reversed_links)
    return Routes(row_pointer(lengths), opposite[network.paths.links[backwards]])


def is_duplex(network: LinkNetwork, times: LinkTimes) -> bool:
    """Whether every link has an opposite link with equal times: the network is its transpose.

    False for networks with switches, where the two directions may share other links.
    """
    opposite = find_opposite_links(network, network)
    if isinstance(network, PathNetwork) or np.any(opposite < 0):
        return False
    is_busy_equal = np.array_equal(times.busy, times.busy[opposite])
    return is_busy_equal and np.array_equal(times.arrival, times.arrival[opposite])


def find_opposite_links(network: LinkNetwork, other_network: LinkNetwork) -> Int64Array:
    """Return for every link u -> v of `network` its opposite v -> u in `other_network`, else -1."""
    # Links are sorted by destination, then by source, so these keys ascend.
    key = other_network.destination * other_network.num_nodes + other_network.source
    opposite_key = network.source * network.num_nodes + network.destination
    if not len(key):
        return np.full(len(opposite_key), -1, np.int64)
    link = np.minimum(np.searchsorted(key, opposite_key), len(key) - 1)
    return np.where(key[link] == opposite_key, link, -1)
