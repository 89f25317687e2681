"""All-reduce where links differ by direction: up one tree, and down another of the same root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from collhub_packing import all_gather_trees
from collhub_schedules import partition_rate

from collhub_blink.packing.bounds import least_cut_bound
from collhub_blink.packing.machines import islands
from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree, placed, unit_that_fits
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.task import PackingTask


def directed_packing(task: PackingTask) -> PlacedPacking:
    """The trees of an all-gather, and those of a reduce-scatter for the way up.

    As wide as fit together.
    """
    network = task.network
    down, up = _trees(task, network), _trees(task, network.reversed)
    pairs: list[PlacedTree] = []
    for root in task.npus:
        pairs += _pairs(down[root], up[root])
    # Rates up and down may differ: what both take of the links is added up.
    unit = unit_that_fits(network.topology, pairs, True)
    bound = directed_bound(network)
    return PlacedPacking("trees for each direction", tuple(pairs), unit, bound)


def _trees(task: PackingTask, network: RankNetwork) -> dict[int, list[PlacedTree]]:
    """Trees by NPU of their root; all roots have the same weight."""
    found = all_gather_trees(network.graph, seeds=task.seeds, first_seed=task.seed)
    trees = placed(network, found.trees, found.network, network.graph)
    by_root: dict[int, list[PlacedTree]] = {root: [] for root in task.npus}
    for tree in trees:
        by_root[tree.tree.root].append(tree)
    return by_root


def _pairs(down: Sequence[PlacedTree], up: Sequence[PlacedTree]) -> Iterator[PlacedTree]:
    """Trees for both ways, side by side: as much weight of the one as of the other."""
    # Both scaled to the product of the two totals.
    left_down = _times(down, sum(tree.weight for tree in up))
    left_up = _times(up, sum(tree.weight for tree in down))
    first = second = 0
    while first < len(down) and second < len(up):
        weight = min(left_down[first], left_up[second])
        yield replace(_of_weight(down[first], weight), up=_of_weight(up[second], weight))
        left_down[first] -= weight
        left_up[second] -= weight
        # At least one of the two is used up.
        if not left_down[first]:
            first += 1
        if not left_up[second]:
            second += 1


def _times(trees: Sequence[PlacedTree], factor: int) -> list[int]:
    """Weights times a factor."""
    return [tree.weight * factor for tree in trees]


def _of_weight(placed_tree: PlacedTree, weight: int) -> PlacedTree:
    """The same tree with another weight."""
    tree = replace(placed_tree.tree, weight=weight)
    return replace(placed_tree, tree=tree)


def directed_bound(network: RankNetwork) -> RateBound:
    """The least of the bounds by partitions into ranks and machines, and by the least cuts.

    All data must cross a cut either way. A packing need not reach the bound.
    """
    if network.is_multiplied:
        return least_cut_bound(network)
    return min(
        [*_partition_bounds(network), least_cut_bound(network)], key=lambda bound: bound.rate
    )


def _partition_bounds(network: RankNetwork) -> Iterator[RateBound]:
    """Bounds of the partitions that `islands` finds."""
    capacities = _bandwidths(network)
    for found in islands(network.graph):
        # One block alone sends nothing.
        if len(found) > 1:
            blocks = tuple(network.named(block) for block in found)
            yield RateBound("partition", partition_rate(blocks, capacities), blocks=blocks)


def _bandwidths(network: RankNetwork) -> dict[tuple[int, int], Fraction]:
    """Bytes per second by the ends of a link in the topology."""
    graph = network.graph
    sources = network.nodes[graph.source].tolist()
    destinations = network.nodes[graph.destination].tolist()
    ends = zip(sources, destinations, strict=True)
    bandwidths = [capacity * graph.unit for capacity in graph.capacity.tolist()]
    return dict(zip(ends, bandwidths, strict=True))
