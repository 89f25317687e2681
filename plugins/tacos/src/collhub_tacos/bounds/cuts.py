"""Set of nodes out of which an all-gather comes slowest, found exactly by flows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_packing import CapacityGraph

from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.columns import BoolArray, Int64Array, inverse
from hub_core.model import InputError


def tightest_sets(network: LinkNetwork, members: Int64Array) -> list[BoolArray]:
    """Node set of least bandwidth out of it by members in it: bool[nodes], for `lower_bounds_ps`.

    Empty where bandwidths have no common unit, which exact flows need. Cost: several flows to each
    member, so it is for hundreds of nodes. Raises `InputError` where members cannot reach one
    another.
    """
    # Imports numba, which takes a second.
    from collhub_packing import all_gather_rate

    try:
        graph = CapacityGraph.of(network.topology)
    except InputError:
        return []
    relays = np.setdiff1d(np.arange(network.num_nodes), members)
    order = np.concatenate([members, relays])
    cut = all_gather_rate(_renumbered(graph, order, len(members))).cut
    nodes = np.zeros(network.num_nodes, np.bool_)
    nodes[order[list(cut)]] = True
    return [nodes]


def _renumbered(graph: CapacityGraph, order: Int64Array, num_members: int) -> CapacityGraph:
    """Graph whose node i is node `order[i]` of the given one; those after the members relay."""
    number = inverse(order)
    # NPUs that only relay are to the flows what switches are: they need nothing themselves.
    return replace(
        graph,
        num_compute=num_members,
        source=number[graph.source],
        destination=number[graph.destination],
    )
