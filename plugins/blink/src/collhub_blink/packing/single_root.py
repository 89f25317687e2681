"""Packings for broadcast and reduce: trees of one root at the optimal rate, few or shallow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from collhub_packing import (
    CapacityGraph,
    SpanningTree,
    SwitchSpread,
    all_gather_trees,
    broadcast_rate,
    direct,
    pack_arborescences,
)

from collhub_blink.packing.fewest_broadcast_trees import find_fewest_broadcast_trees
from collhub_blink.packing.machines import build_rooted_machine_packings
from collhub_blink.packing.packings import (
    PlacedPacking,
    RateBound,
    build_shallow_packing,
    find_chain_packing,
    to_cut_bound,
)
from collhub_blink.packing.placing import PlacedTree, place_trees
from collhub_blink.packing.task import PackingTask, RankNetwork
from collhub_blink.packing.weight_search import TreeSearchResult
from hub_core.model import InputError

# Above this size, the proofs for every depth take longer than they may save.
_MAX_NODES_OF_A_FRONT = 24


def build_rooted_packings(task: PackingTask) -> list[PlacedPacking]:
    """Build packings for a broadcast, or for a reduce in the reversed network.

    Without switches: the packing with the fewest trees, then packings with more trees and less
    depth. With switches: a chain, trees through forwarders, plans for several hosts. One shallow
    tree is last.
    """
    network = task.oriented_network
    rate = broadcast_rate(network.graph, task.root)
    bound = to_cut_bound(network, rate)
    if network.is_direct:
        optimal = list(_generate_front_packings(task, network, int(rate.value), bound))
    else:
        optimal = list(_generate_switched_packings(task, network, bound))
    return [*optimal, build_shallow_packing(task, "one shallow tree", [task.root], bound)]


def _generate_front_packings(
    task: PackingTask,
    network: RankNetwork,
    total: int,
    bound: RateBound,
) -> Iterator[PlacedPacking]:
    """Yield the packings of `find_tree_front` in a network without switches.

    Their trees have the total weight `total` from the task's root, start from an arborescence
    packing of the requested seeds, and are placed on direct links; no packing has both more trees
    and more depth than another. Each has `bound`, and the proved minimum of trees with its reason.
    """
    graph = network.graph
    known = pack_arborescences(graph, task.root, total, seeds=task.seeds, first_seed=task.seed)
    for result in find_tree_front(task, graph, total, known):
        yield PlacedPacking(
            method="fewest trees",
            trees=place_trees(network, result.trees, direct(graph), graph),
            unit=graph.unit,
            bound=bound,
            at_least=result.lower_bound,
            reason=result.reason,
        )


def _generate_switched_packings(
    task: PackingTask,
    network: RankNetwork,
    bound: RateBound,
) -> Iterator[PlacedPacking]:
    """Yield packings in a network with switches, which are replaced by direct arcs first.

    In this order: the chain, if there is one; trees with traffic concentrated at switches, then
    with traffic spread over them unless the trees are equal; and packings of machines. `InputError`
    (`depth`) if a maximum depth is requested.
    """
    graph = network.graph
    if task.depth is not None:
        message = "depth: trees of a limited depth are not searched in networks with switches"
        raise InputError(message, code="depth")
    chain = find_chain_packing(task, bound)
    if chain is not None:
        yield chain
    # A broadcast is an all-gather to which only the root contributes.
    contributions = np.zeros(graph.num_compute, np.int64)
    contributions[task.root] = 1
    # Spread traffic gives flatter trees, concentrated traffic fewer; the simulated time decides.
    known: list[tuple[PlacedTree, ...]] = []
    for spread in (SwitchSpread.NOWHERE, SwitchSpread.EVERYWHERE):
        packing = all_gather_trees(
            graph,
            contributions.tolist(),
            spread=spread,
            seeds=task.seeds,
            first_seed=task.seed,
        )
        trees = place_trees(network, packing.trees, packing.network, graph)
        # Both may give the same trees, which need no second schedule.
        if trees in known:
            continue
        known.append(trees)
        unit = packing.network.graph.unit
        yield PlacedPacking("trees through forwarders", trees, unit, bound)
    yield from build_rooted_machine_packings(task, bound)


def find_tree_front(
    task: PackingTask,
    graph: CapacityGraph,
    total: int,
    known: Sequence[SpanningTree],
) -> list[TreeSearchResult]:
    """Find packings of which none has both fewer trees and less depth than another.

    The first has the fewest trees; the next ones have decreasing depth, until no packing is found
    within the budget. Above 24 nodes only the first is searched. With a maximum depth in the task,
    only the fewest trees within it; `InputError` if none is found. `total`: the rate in units of
    the graph; `known`: an available packing.
    """
    if task.depth is not None:
        return [_find_within_depth(task, graph, total, known, task.depth)]
    front = [find_fewest_broadcast_trees(graph, task.root, total, known, task.budget)]
    if graph.num_nodes > _MAX_NODES_OF_A_FRONT or task.budget.is_interrupted:
        return front
    depth = _maximum_depth(front[0].trees) - 1
    while depth > 0:
        try:
            result = find_fewest_broadcast_trees(graph, task.root, total, (), task.budget, depth)
        # A search without known trees passes Ctrl-C on; the front so far is the result.
        except KeyboardInterrupt:
            task.budget.is_interrupted = True
            break
        if not result.trees:
            break
        # Equally many trees and shallower: this packing replaces the previous one.
        if len(result.trees) == len(front[-1].trees):
            front.pop()
        front.append(result)
        depth = _maximum_depth(result.trees) - 1
    return front


def _find_within_depth(
    task: PackingTask,
    graph: CapacityGraph,
    total: int,
    available: Sequence[SpanningTree],
    depth: int,
) -> TreeSearchResult:
    """Return the fewest trees of at most `depth` that the search budget finds.

    `total`: the sum of their weights. `available`: a known packing, the result if no smaller one is
    found; ignored if one of its trees is too deep. Raises `InputError` if none is found: with the
    proof that there is none, or because the budget is exhausted.
    """
    # Known trees that are too deep cannot be the result.
    known = available if _maximum_depth(available) <= depth else ()
    result = find_fewest_broadcast_trees(graph, task.root, total, known, task.budget, depth)
    if not result.trees:
        raise _depth_error(depth, result)
    return result


def _maximum_depth(trees: Sequence[SpanningTree]) -> int:
    """Depth of the deepest of one or more trees, in hops."""
    return max(tree.depth for tree in trees)


def _depth_error(depth: int, result: TreeSearchResult) -> InputError:
    """Build the error for a depth without trees, with the proof if there is one.

    The result's reason is stated if it proves that more than one tree is needed. The error is
    returned, not raised.
    """
    message = f"no trees of depth {depth} at the optimal rate were found"
    if result.lower_bound > 1:
        message += f" ({result.reason})"
    return InputError(
        message,
        cure="allow more with -O depth=, or more search with -O time_limit=",
        code="depth",
    )
