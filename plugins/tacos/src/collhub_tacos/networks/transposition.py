"""Networks with every link turned round, on which reductions become spreadings."""

from __future__ import annotations

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from hub_core.columns import Int64Array, counted_positions, group_pointer, row_pointer
from hub_core.network import Routes, Topology


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
