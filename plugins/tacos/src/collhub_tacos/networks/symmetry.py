"""Symmetry of networks that look alike from every node, as tori do: translations of the nodes."""

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

# Numbers with many divisors have thousands of shapes; regular networks fit an early one.
_MOST_SHAPES = 1000
# Both ends, where open dimensions show, and some between.
_NODES_TO_PROBE = 5


@dataclass(frozen=True, slots=True, eq=False)
class Translations:
    """Adding any node to all nodes, digit by digit modulo `moduli`, maps the network to itself.

    `difference`: int64[degree], destination less source, per in-link of a node; `in_link`:
    int64[nodes, degree], the link of this difference at every node.
    """

    moduli: tuple[int, ...]
    difference: Int64Array
    in_link: Int64Array

    @classmethod
    def of(
        cls, network: LinkNetwork, origin: Int64Array, times: LinkTimes | None = None
    ) -> Translations | None:
        """Translations that keep links, numbers of chunks and, where given, the times of links.

        Tried are the stated dimensions of a regular network, and every way to number the nodes in
        dimensions. None where there are none.
        """
        # Every node is moved to every other: all must have as many links and chunks.
        own = np.bincount(origin, minlength=network.num_nodes)
        if not network.num_links or not _is_alike(network.in_degree) or not _is_alike(own):
            return None
        for shape in islice(_shapes_to_try(network), _MOST_SHAPES):
            found = _invariance(network, shape, times)
            if found is not None:
                return found
        return None

    def minus(self, nodes: Int64Array, offsets: Int64Array) -> Int64Array:
        """`nodes` less `offsets`, digit by digit; arrays that numpy can broadcast."""
        return _difference(nodes, offsets, self.moduli)

    def source_of(self, offset: int) -> int:
        """Node whose chunks come to node 0 over `offset`."""
        # Node 0 lies `offset` on from it.
        node = self._negative(np.asarray([offset]))
        return int(node[0])

    def cell_shift(self, own: int) -> Int64Array:
        """What a cell of the source of an in-link is at the node itself: int64[degree, cells].

        Cell `g * own + r` is chunk r of the node that lies g back. At the source of an in-link it
        is the cell of the column, at this node the one that stands there.
        """
        cells = np.arange(len(self.in_link) * own)
        back = self._negative(self.difference)
        offset = self.minus(cells // own, back[:, None])
        return offset * own + cells % own

    def _negative(self, offsets: Int64Array) -> Int64Array:
        """The offsets back."""
        return self.minus(np.zeros(1, np.int64), offsets)


def _difference(left: Int64Array, right: Int64Array, moduli: tuple[int, ...]) -> Int64Array:
    """Differences of nodes dimension by dimension, each modulo its size."""
    result = np.zeros(np.broadcast_shapes(left.shape, right.shape), np.int64)
    stride = 1
    for modulus in moduli:
        # No digit borrows from the next one: dimensions are cyclic.
        # Unnamed, so that numpy works in place: these arrays may have millions of cells.
        result += (left // stride - right // stride) % modulus * stride
        stride *= modulus
    return result


def _shapes_to_try(network: LinkNetwork) -> Iterator[tuple[int, ...]]:
    """Stated dimensions first, then all others that have as many nodes."""
    stated = tuple(dimension.size for dimension in network.topology.dimensions)
    for shape in (stated, *_shapes(network.num_npus)):
        if math.prod(shape) == network.num_npus:
            yield shape


def _shapes(num_nodes: int) -> Iterator[tuple[int, ...]]:
    """All sizes of dimensions, each at least 2, whose product is `num_nodes`.

    Fewest dimensions first where they begin alike.
    """
    if num_nodes > 1:
        yield (num_nodes,)
    for first in range(2, num_nodes // 2 + 1):
        if num_nodes % first == 0:
            for rest in _shapes(num_nodes // first):
                yield (first, *rest)


def _invariance(
    network: LinkNetwork, moduli: tuple[int, ...], times: LinkTimes | None
) -> Translations | None:
    """The translations of one shape, None where they do not map the network to itself."""
    num_nodes = network.num_npus
    source = network.source.reshape(num_nodes, -1)
    if _fails_at_some_node(source, moduli):
        return None
    nodes = np.arange(num_nodes)[:, None]
    difference = _difference(nodes, source, moduli)
    # In-links of all nodes in the same order: that of how far they come.
    order = np.argsort(difference, axis=1, kind="stable")
    in_order = np.take_along_axis(difference, order, axis=1)
    in_link = network.indptr[:-1, None] + order
    columns = [in_order]
    if times is not None:
        columns += [times.busy[in_link], times.arrival[in_link]]
    if not all(_is_alike(column) for column in columns):
        return None
    return Translations(moduli, in_order[0], in_link)


def _fails_at_some_node(source: Int64Array, moduli: tuple[int, ...]) -> bool:
    """Whether a few nodes already differ: most shapes fail there, which is much faster to see."""
    last = len(source) - 1
    few = np.unique(np.linspace(0, last, _NODES_TO_PROBE, dtype=np.int64))
    difference = _difference(few[:, None], source[few], moduli)
    return not _is_alike(np.sort(difference, axis=1))


def _is_alike(rows: Int64Array) -> bool:
    """Whether all rows equal the first; there must be one."""
    return bool(np.all(rows == rows[0]))


def transposed(network: LinkNetwork) -> LinkNetwork:
    """Network with every link turned round; routes over switches go the same way back."""
    turned = LinkNetwork.of(_turned(network.topology))
    if not isinstance(network, PathNetwork):
        return turned
    # Arcs by their new destination, then by their new source.
    # As `LinkNetwork` groups them.
    order = np.lexsort((network.destination, network.source))
    paths = _turned_paths(network, turned, order)
    return PathNetwork(
        topology=turned.topology,
        num_npus=network.num_npus,
        num_nodes=network.num_nodes,
        indptr=group_pointer(network.source[order], network.num_nodes),
        source=network.destination[order],
        row=turned.row[paths.links[paths.indptr[:-1]]],
        links=turned,
        paths=paths,
    )


def _turned(topology: Topology) -> Topology:
    """Topology with source and destination exchanged; dimensions do not hold for it any more.

    Backwards in time, a copy is a sum.
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


def _turned_paths(network: PathNetwork, turned: LinkNetwork, order: Int64Array) -> Routes:
    """Routes of the arcs `order`, each from its last link to its first, over opposite links."""
    lengths = np.diff(network.paths.indptr)[order]
    last = network.paths.indptr[1:][order] - 1
    backwards = np.repeat(last, lengths) - counted_positions(lengths)
    opposite = opposite_links(network.links, turned)
    return Routes(row_pointer(lengths), opposite[network.paths.links[backwards]])


def is_duplex(network: LinkNetwork, times: LinkTimes) -> bool:
    """Whether every link has an opposite one of the same times: the network is its transpose.

    Not said of networks with switches, where routes there and back may share other links.
    """
    opposite = opposite_links(network, network)
    if isinstance(network, PathNetwork) or np.any(opposite < 0):
        return False
    is_busy_alike = np.array_equal(times.busy, times.busy[opposite])
    return is_busy_alike and np.array_equal(times.arrival, times.arrival[opposite])


def opposite_links(network: LinkNetwork, other: LinkNetwork) -> Int64Array:
    """For every link u -> v of `network` the link v -> u of `other`, -1 where there is none."""
    # Links stand by destination, then by source, so that these keys ascend.
    key = other.destination * other.num_nodes + other.source
    wanted = network.source * network.num_nodes + network.destination
    if not len(key):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where(key[place] == wanted, place, -1)
