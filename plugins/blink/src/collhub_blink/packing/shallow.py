"""Trees for little data, where latency counts: few hops instead of the full rate."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_packing import SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import placed_along_routes, shallow_tree, unit_that_fits
from collhub_blink.packing.task import PackingTask
from hub_core.model import CollectiveKind

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
    trees = [shallow_tree(task.oriented_network.graph, root) for root in roots]
    return along_routes(task, method, trees, bound)


def along_routes(
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
    at_least = network.graph.num_compute if kind in _A_TREE_A_RANK else 1
    return PlacedPacking(method, placed, unit, bound, at_least, is_shallow=True)
