"""Trees for little data, where latency counts: few hops instead of the full rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from collhub_columns import BoolArray, Int64Array
from collhub_packing import CapacityGraph, SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import placed_along_routes, shallow_tree, unit_that_fits
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.task import PackingTask
from hub_core.model import CollectiveKind

Blocks = list[tuple[int, ...]]
"""A partition of the ranks."""

_A_TREE_A_RANK = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def shallow_packing(
    task: PackingTask,
    method: str,
    roots: Sequence[int],
    bound: RateBound,
) -> PlacedPacking:
    """One tree of least depth from each of some ranks, all of one weight.

    Behind a switch these are the one-hop trees of Blink (Wang et al., MLSys 2020).
    """
    trees = [shallow_tree(task.network.graph, root) for root in roots]
    return _along_routes(task, method, trees, bound)


def three_phase_packing(task: PackingTask, bound: RateBound) -> PlacedPacking | None:
    """Blink's plan for several machines, as trees (Wang et al., MLSys 2020).

    One tree a rank, over the ranks of its number in the other machines. Reduce within machines,
    across, and broadcast within machines are then one pipeline. None where the network does not
    fall into machines of one size.
    """
    partitions = islands(task.network.graph)
    # The first such partition has the smallest machines: what joins them are the widest links.
    blocks = next((found for found in partitions if _are_machines(found)), None)
    if blocks is None:
        return None
    inner = [_within(task.network.graph, block) for block in blocks]
    trees = []
    for home in range(len(blocks)):
        for index in range(len(blocks[0])):
            trees.append(_joined(task.network, blocks, inner, home, index))
    return _along_routes(task, "three phases", trees, bound)


def _are_machines(blocks: Blocks) -> bool:
    """Whether there are several blocks of one size above 1."""
    sizes = {len(block) for block in blocks}
    return len(blocks) > 1 and len(sizes) == 1 and sizes != {1}


def _joined(
    network: RankNetwork,
    blocks: Blocks,
    inner: list[dict[int, SpanningTree]],
    home: int,
    index: int,
) -> SpanningTree:
    """The tree whose root is rank `index` of machine `home`."""
    parent = np.full(network.graph.num_compute, -1, np.int64)
    root = blocks[home][index]
    for number, block in enumerate(blocks):
        tree = inner[number][block[index]]
        hanging = np.flatnonzero(tree.parent >= 0)
        parent[hanging] = tree.parent[hanging]
        # The other machines hang at the root by their ranks of the same number.
        if number != home:
            parent[block[index]] = root
    arc = np.full(len(parent), -1, np.int64)
    return SpanningTree(root, 1, parent, arc)


def _within(graph: CapacityGraph, block: tuple[int, ...]) -> dict[int, SpanningTree]:
    """Shallow trees from every rank of a machine to the others of it."""
    members = np.zeros(graph.num_compute, np.bool_)
    members[list(block)] = True
    trees = {}
    for root in block:
        tree = shallow_tree(graph, root)
        parent = np.where(members, tree.parent, -1)
        trees[root] = SpanningTree(root, 1, parent, tree.arc)
    return trees


def islands(graph: CapacityGraph) -> Iterator[Blocks]:
    """Partitions of the ranks into those that wide links join, for ever narrower links.

    The ranks of a machine are joined by wider links than machines are. Every rank alone comes
    first.
    """
    seen = set()
    # No link is as wide as this: every rank is alone.
    above_all = int(graph.capacity.max()) + 1
    for width in [above_all, *np.unique(graph.capacity)[::-1].tolist()]:
        part = _parts(graph, graph.capacity >= width)[: graph.num_compute]
        blocks = [tuple(np.flatnonzero(part == number).tolist()) for number in np.unique(part)]
        if tuple(blocks) not in seen:
            seen.add(tuple(blocks))
            yield blocks


def _parts(graph: CapacityGraph, chosen: BoolArray) -> Int64Array:
    """The least node that each node is joined with by the chosen arcs, either way."""
    part = np.arange(graph.num_nodes)
    source, destination = graph.source[chosen], graph.destination[chosen]
    while True:
        least = part.copy()
        np.minimum.at(least, destination, part[source])
        np.minimum.at(least, source, part[destination])
        # Numbers only fall, so that this ends.
        if np.array_equal(least, part):
            return part
        part = least


def _along_routes(
    task: PackingTask,
    method: str,
    trees: Sequence[SpanningTree],
    bound: RateBound,
) -> PlacedPacking:
    """A packing of trees over ranks on the topology's own routes, as wide as fits."""
    kind = task.collective.kind
    network = task.oriented_network
    placed = placed_along_routes(network, trees)
    unit = unit_that_fits(network.topology, placed, kind is CollectiveKind.ALL_REDUCE)
    # Where every rank sends data of its own, each needs a tree.
    at_least = len(trees) if kind in _A_TREE_A_RANK else 1
    return PlacedPacking(method, placed, unit, bound, at_least, is_shallow=True)
