"""Broadcasts of a box on trees that are packed on the real topology.

Exact for the sender and receivers of a box as the only compute nodes: switches relay, other NPUs do
not, so that where these could help it is a heuristic for Steiner trees.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from collhub_packing import (
    CapacityGraph,
    SpanningTree,
    broadcast_rate,
    pack_rooted_trees,
    without_switches,
)

from collhub_reshard.lowering.transfers import Audience, Transfer
from hub_core.network import Topology


def tree_transfers(topology: Topology, audience: Audience, chunks: int) -> list[Transfer]:
    """Every tree carries its share of the box in `chunks` parts, from parents to children."""
    receivers = [device for devices in audience.hosts.values() for device in devices]
    nodes = (audience.sender, *receivers)
    trees = _packed(topology, nodes)
    total = sum(tree.weight for tree in trees)
    found: list[Transfer] = []
    for chunk in range(chunks):
        begun = 0
        for tree in trees:
            low = Fraction(begun, total)
            share = Fraction(tree.weight, total)
            begun += tree.weight
            part = (low + share * chunk / chunks, low + share * (chunk + 1) / chunks)
            found += _along(tree, nodes, part, len(found))
    return found


@lru_cache(maxsize=256)
def _packed(topology: Topology, nodes: tuple[int, ...]) -> tuple[SpanningTree, ...]:
    """The trees from the first of some NPUs to the others, as much as the network carries."""
    graph = CapacityGraph.of(topology.subset(nodes))
    rate = broadcast_rate(graph, 0)
    sent = np.zeros(len(nodes), np.int64)
    sent[0] = int(rate.value)
    direct = without_switches(graph, sent) if graph.has_switches else None
    return tuple(pack_rooted_trees(graph if direct is None else direct.graph, sent))


def _along(
    tree: SpanningTree, nodes: tuple[int, ...], part: tuple[Fraction, Fraction], first: int
) -> list[Transfer]:
    """The transfers of one part down a tree; `first`: the number of the first of them."""
    depths = tree.depths
    order = sorted(range(1, len(nodes)), key=lambda node: (int(depths[node]), node))
    number = {0: -1}
    found = []
    for node in order:
        parent = int(tree.parent[node])
        found.append(Transfer(nodes[parent], nodes[node], *part, number[parent]))
        number[node] = first + len(found) - 1
    return found
