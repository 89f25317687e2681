"""Say why a chunk cannot get where it must: the pair, and the nodes that no link leaves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.diagnostics import InputError
from hub_core.rank_lists import format_ranks


def hops_from(network: LinkNetwork, node: int, *, both_ways: bool = False) -> npt.NDArray[np.int64]:
    """Links from `node` to every node, -1 where there is no way: int64[nodes]. `both_ways`: links count backwards, too."""
    hops = np.full(network.num_nodes, -1, np.int64)
    hops[node] = 0
    source, destination, distance = network.source, network.destination, 0
    if both_ways:
        source, destination = (
            np.concatenate([source, destination]),
            np.concatenate([destination, source]),
        )
    reached = hops == 0
    while reached.any():
        distance += 1
        following = np.zeros(network.num_nodes, np.bool_)
        following[destination[reached[source]]] = True
        reached = following & (hops < 0)
        hops[reached] = distance
    return hops


def unreachable(network: LinkNetwork, source: int, destination: int) -> InputError:
    """The error for a pair of nodes without a way, to be raised by the caller."""
    topology = network.topology
    inside = np.flatnonzero(hops_from(network, source) >= 0)
    npus = [int(node) for node in inside if node < network.num_npus]
    switches = [topology.node_name(int(node)) for node in inside if node >= network.num_npus]
    cut = ", ".join([f"NPU{'s' * (len(npus) > 1)} {format_ranks(npus)}", *switches])
    message = f"topology {topology.name}: NPU {source} cannot reach NPU {destination}: no link leaves {cut}"
    return InputError(
        message, cure="add links, or choose NPUs that reach one another", code="disconnected"
    )
