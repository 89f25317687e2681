"""All-reduce: undirected trees at the strength of the network, up and down each at the same time."""

from __future__ import annotations

from dataclasses import replace

from collhub_packing.graph import CapacityGraph
from collhub_packing.orientation import all_reduce_trees

from collhub_blink.fewest_all_reduce import fewest_all_reduce_trees
from collhub_blink.packing import Bound, Packing, shallow_tree, unit_that_fits
from collhub_blink.task import Task

__all__ = ["all_reduce_packings"]


def all_reduce_packings(task: Task) -> list[Packing]:
    """Fewest trees at the optimal rate; one tree, and one tree a rank, of least depth for small sizes."""
    graph = task.network.graph
    strength, grown = all_reduce_trees(graph, seeds=task.seeds, first_seed=task.seed)
    scale = strength.value.denominator
    scaled = replace(graph, capacity=graph.capacity * scale, unit=graph.unit / scale)
    bound = Bound("partition", strength.value * graph.unit, blocks=tuple(map(task.network.named, strength.blocks)))
    found = fewest_all_reduce_trees(scaled, strength.value.numerator, grown, task.budget)
    return [
        Packing("fewest trees", found.trees, scaled.unit, bound, found.lower_bound, found.reason),
        *_shallow(graph, bound),
    ]


def _shallow(graph: CapacityGraph, bound: Bound) -> list[Packing]:
    """One tree from the node that is nearest to all, and one from every node."""
    trees = [shallow_tree(graph, root) for root in range(graph.num_compute)]
    centre = min(trees, key=lambda tree: (tree.depth, int(tree.depths().sum()), tree.root))
    return [
        Packing(name, tuple(chosen), unit_that_fits(graph, chosen, True), bound)
        for name, chosen in (("one shallow tree", [centre]), ("a shallow tree a rank", trees))
    ]
