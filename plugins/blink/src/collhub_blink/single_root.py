"""Broadcast and reduce: trees of one root at the optimal rate, few or shallow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collhub_packing.graph import CapacityGraph
from collhub_packing.growth import pack_arborescences
from collhub_packing.rates import Rate, broadcast_rate
from collhub_packing.trees import Tree

from collhub_blink.fewest import Fewest
from collhub_blink.fewest_broadcast import fewest_broadcast_trees
from collhub_blink.network import transposed
from collhub_blink.packing import Bound, Packing, shallow_tree, unit_that_fits
from collhub_blink.task import Task
from hub_core.collectives import CollectiveKind
from hub_core.diagnostics import InputError

__all__ = ["rooted_packings", "tree_front"]

_MOST_NODES_OF_A_FRONT = 24


def rooted_packings(task: Task) -> list[Packing]:
    """Packings for a broadcast, or with all links turned round a reduce: fewest trees, the rest of the front, one tree."""
    graph = task.network.graph if task.collective.kind is CollectiveKind.BROADCAST else transposed(task.network.graph)
    rate = broadcast_rate(graph, task.root)
    bound = Bound("cut", rate.value * graph.unit, task.network.named(rate.cut))
    return [*_optimal(task, graph, rate, bound), _single(task, graph, bound)]


def _optimal(task: Task, graph: CapacityGraph, rate: Rate, bound: Bound) -> Iterator[Packing]:
    total = int(rate.value)
    grown = pack_arborescences(graph, task.root, total, seeds=task.seeds, first_seed=task.seed)
    for found in tree_front(task, graph, total, grown):
        yield Packing("fewest trees", found.trees, graph.unit, bound, found.lower_bound, found.reason)


def tree_front(task: Task, graph: CapacityGraph, total: int, grown: Sequence[Tree]) -> list[Fewest]:
    """Packings of which none has both fewer trees and less depth than another: fewest trees first, then ever shallower.

    Depths that the budget leaves open are passed over. With a stated depth, the fewest trees within it, and an
    `InputError` where there are none or none was found.
    """
    if task.depth is not None:
        known = [tree for tree in grown if tree.depth <= task.depth]
        found = fewest_broadcast_trees(
            graph, task.root, total, known if len(known) == len(grown) else (), task.budget, task.depth
        )
        if not found.trees:
            raise _too_shallow(task.depth, found)
        return [found]
    front = [fewest_broadcast_trees(graph, task.root, total, grown, task.budget)]
    if graph.num_nodes > _MOST_NODES_OF_A_FRONT:
        return front
    depth = _depth(front[0].trees) - 1
    while depth > 0:
        found = fewest_broadcast_trees(graph, task.root, total, (), task.budget, depth)
        if not found.trees:
            break
        if len(found.trees) == len(front[-1].trees):
            front.pop()
        front.append(found)
        depth = _depth(found.trees) - 1
    return front


def _depth(trees: Sequence[Tree]) -> int:
    return max(tree.depth for tree in trees)


def _too_shallow(depth: int, found: Fewest) -> InputError:
    message = f"no trees of depth {depth} at the optimal rate were found"
    if found.lower_bound > 1:
        message += f" ({found.reason})"
    return InputError(message, cure="allow more with -O depth=, or more search with -O time_limit=", code="depth")


def _single(task: Task, graph: CapacityGraph, bound: Bound) -> Packing:
    """One tree of least depth: the least latency, for small sizes."""
    tree = shallow_tree(graph, task.root)
    unit = unit_that_fits(graph, [tree])
    return Packing("one shallow tree", (tree,), unit, bound)
