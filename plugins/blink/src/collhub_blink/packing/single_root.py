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
from collhub_blink.packing.placing import place_trees
from collhub_blink.packing.task import PackingTask, RankNetwork
from collhub_blink.packing.weight_search import TreeSearchResult
from hub_core.model import InputError

# Above this size, the proofs for every depth take longer than they may save.
_MAX_NODES_OF_A_FRONT = 24


def build_rooted_packings(task: PackingTask) -> list[PlacedPacking]:
    """Build the candidate packings of trees for a broadcast or a reduce.

    For a reduce, all links are reversed. The last candidate is always a packing of one shallow
    tree. Before it are:

    - If all nodes are ranks: the packing with the fewest trees, then packings with more trees and
      less depth (`find_tree_front`, which begins with the trees of `pack_arborescences`). If the
      task limits the depth, only the one with the fewest trees within it. Each has a proved lower
      bound of the number of trees, and its reason.
    - With switches or idle NPUs: one chain if it reaches the best rate, trees with concentrated
      traffic, trees with spread traffic, and one packing per division into equal hosts.

    Raise `InputError` (`depth`) if the task limits the depth, and no trees within it are found or
    there are switches or idle NPUs. If all nodes are ranks, Ctrl-C ends the search with the
    packings so far; it is raised if the depth is limited and these are too deep.
    """
    network = task.oriented_network
    graph = network.graph
    rate = broadcast_rate(graph, task.root)
    bound = to_cut_bound(network, rate)
    packings: list[PlacedPacking] = []
    if network.is_direct:
        total = int(rate.value)
        known = pack_arborescences(graph, task.root, total, seeds=task.seeds, first_seed=task.seed)
        for result in find_tree_front(task, graph, total, known):
            packing = PlacedPacking(
                method="fewest trees",
                trees=place_trees(network, result.trees, direct(graph), graph),
                unit=graph.unit,
                bound=bound,
                at_least=result.lower_bound,
                reason=result.reason,
            )
            packings.append(packing)
    else:
        packings += _generate_switched_packings(task, network, bound)
    return [*packings, build_shallow_packing(task, "one shallow tree", [task.root], bound)]


def _generate_switched_packings(
    task: PackingTask,
    network: RankNetwork,
    bound: RateBound,
) -> Iterator[PlacedPacking]:
    """Yield packings of spanning trees in a network with switches, one at a time, in this order.

    1. One chain through all ranks, if `find_chain_packing` returns one, i.e. it reaches the
       rate of `bound`, an upper limit of the rate.
    2. Trees at the best rate for data of the root, with traffic at a switch concentrated on
       few pairs of neighbours, which gives fewer trees.
    3. The same trees, with traffic spread evenly over all pairs of neighbours, which gives
       flatter trees. It is omitted if its unit and trees equal those of case 2.
    4. One packing per division of the ranks into equal hosts
       (`build_rooted_machine_packings`), none without such a division.

    Cases 2 and 3 replace switches by direct arcs first, and use `task.seeds` random orders
    from `task.seed` on. Each packing has `bound` as its bound.

    Raises `InputError` (`depth`) at the first request if `task.depth` is not None. Errors of a
    case, such as `unbalanced-switch`, are raised when its packing is requested.
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
    known = set[tuple[object, ...]]()
    for spread in (SwitchSpread.NOWHERE, SwitchSpread.EVERYWHERE):
        packing = all_gather_trees(
            graph,
            contributions.tolist(),
            spread=spread,
            seeds=task.seeds,
            first_seed=task.seed,
        )
        trees = place_trees(network, packing.trees, packing.network, graph)
        unit = packing.network.graph.unit
        # Both may give the same trees, which need no second schedule.
        content = unit, *(tree.content for tree in trees)
        if content in known:
            continue
        known.add(content)
        yield PlacedPacking("trees through forwarders", trees, unit, bound)
    yield from build_rooted_machine_packings(task, bound)


def find_tree_front(
    task: PackingTask,
    graph: CapacityGraph,
    total: int,
    known: Sequence[SpanningTree],
) -> list[TreeSearchResult]:
    """Find packings with the fewest trees for smaller and smaller depth.

    `total`: sum of the weights of a packing's trees, the rate in units of the graph. `known`: an
    available packing, of at least one tree. The first result has the fewest trees that the budget
    finds for any depth; it is `known` if no packing has fewer. Each next search is for trees that
    are shallower than the previous result. A result with as many trees as the previous one replaces
    it. So trees increase and depths decrease in the list.

    The search ends at depth 0, or when no packing of the next depth is found within the budget. It
    also ends on Ctrl-C, which is recorded in the budget and not raised. Above
    `_MAX_NODES_OF_A_FRONT` (24) nodes only the first search is made.

    If the task has a maximum depth, the only result is the packing with the fewest trees within it.
    It is `known` if these trees are within the depth and no fewer are found. `InputError` (`depth`)
    is raised if there is no result; its message has the reason if it is proved that one tree is not
    enough. Ctrl-C returns `known`, or is raised if `known` is too deep.
    """
    if task.depth is not None:
        # Known trees that are too deep cannot be the result.
        available = known if _maximum_depth(known) <= task.depth else ()
        result = find_fewest_broadcast_trees(
            graph, task.root, total, available, task.budget, task.depth
        )
        if not result.trees:
            reason = f" ({result.reason})" if result.lower_bound > 1 else ""
            raise InputError(
                f"no trees of depth {task.depth} at the optimal rate were found{reason}",
                cure="allow more with -O depth=, or more search with -O time_limit=",
                code="depth",
            )
        return [result]
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


def _maximum_depth(trees: Sequence[SpanningTree]) -> int:
    """Depth of the deepest of one or more trees, in hops."""
    return max(tree.depth for tree in trees)
