"""Say why a chunk cannot get where it must: the pair, and the nodes that no link leaves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.columns import Arcs
from hub_core.model import InputError, format_ranks

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
