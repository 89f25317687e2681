"""Say why a chunk cannot get where it must: the pair, and the nodes that no link leaves."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array

from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.model import InputError, format_ranks


def hops_from(network: LinkNetwork, node: int, *, both_ways: bool = False) -> Int64Array:
    """Links from `node` to every node, -1 where there is no way: int64[nodes].

    `both_ways`: links count backwards, too. Cost: a look at all links per hop.
    """
    source, destination = network.source, network.destination
    if both_ways:
        one, other = source, destination
        source = np.concatenate([one, other])
        destination = np.concatenate([other, one])
    hops = np.full(network.num_nodes, -1, np.int64)
    hops[node] = 0
    distance = 0
    reached = hops == 0
    # Breadth first: all nodes of one distance at a time.
    while reached.any():
        distance += 1
        following = np.zeros(network.num_nodes, np.bool_)
        following[destination[reached[source]]] = True
        # A node that was reached before is no farther now.
        reached = following & (hops < 0)
        hops[reached] = distance
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
