"""All-reduce where links differ by direction: every chunk is reduced on one tree and broadcast on another of the same root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from collhub_packing import all_gather_trees, broadcast_rate

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree, placed, unit_that_fits
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.shallow import islands
from collhub_blink.packing.task import PackingTask
from hub_core.certificates import partition_rate


def directed_packing(task: PackingTask) -> PlacedPacking:
    """The trees of an all-gather, and those of a reduce-scatter for the way up, as wide as fit together."""
    network = task.network
    down, up = _trees(task, network), _trees(task, network.reversed)
    pairs = tuple(pair for root in task.npus for pair in _pairs(down[root], up[root]))
    unit = unit_that_fits(network.topology, pairs, True)
    return PlacedPacking("trees for each direction", pairs, unit, directed_bound(network))


def _trees(task: PackingTask, network: RankNetwork) -> dict[int, list[PlacedTree]]:
    """Trees by NPU of their root; all roots have the same weight."""
    found = all_gather_trees(network.graph, seeds=task.seeds, first_seed=task.seed)
    trees = placed(network, found.trees, found.network, network.graph)
    return {root: [tree for tree in trees if tree.tree.root == root] for root in task.npus}


def _pairs(down: Sequence[PlacedTree], up: Sequence[PlacedTree]) -> Iterator[PlacedTree]:
    """Trees for both ways, side by side: as much weight of the one as of the other."""
    total_down, total_up = sum(tree.weight for tree in down), sum(tree.weight for tree in up)
    left = [tree.weight * total_up for tree in down], [tree.weight * total_down for tree in up]
    first = second = 0
    while first < len(down) and second < len(up):
        weight = min(left[0][first], left[1][second])
        one, other = (
            replace(tree, tree=replace(tree.tree, weight=weight))
            for tree in (down[first], up[second])
        )
        yield replace(one, up=other)
        left[0][first] -= weight
        left[1][second] -= weight
        first, second = first + (not left[0][first]), second + (not left[1][second])


def directed_bound(network: RankNetwork) -> RateBound:
    """The least bound by partitions into ranks and machines, and by the least cut, which all data must cross either way."""
    graph, nodes_of = network.graph, network.nodes
    ends = zip(nodes_of[graph.source].tolist(), nodes_of[graph.destination].tolist(), strict=True)
    capacities = {
        pair: capacity * graph.unit
        for pair, capacity in zip(ends, graph.capacity.tolist(), strict=True)
    }
    blocks = [
        tuple(map(network.named, found)) for found in islands(network.graph) if len(found) > 1
    ]
    bounds = [
        RateBound("partition", partition_rate(found, capacities), blocks=found) for found in blocks
    ]
    out, into = broadcast_rate(network.graph, 0), broadcast_rate(network.reversed.graph, 0)
    behind = tuple(node for node in range(network.graph.num_nodes) if node not in into.cut)
    bounds += [
        RateBound("cut", rate.value * network.graph.unit, network.named(nodes))
        for rate, nodes in ((out, out.cut), (into, behind))
    ]
    return min(bounds, key=lambda bound: bound.rate)
