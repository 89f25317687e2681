"""Broadcast and reduce: trees of one root at the optimal rate, few or shallow."""

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

from collhub_blink.fewest.broadcast import fewest_broadcast_trees
from collhub_blink.fewest.counting import Fewest
from collhub_blink.packing.bounds import cut_bound
from collhub_blink.packing.chain import chain_packing
from collhub_blink.packing.machines import rooted_machine_packings
from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree, placed
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.shallow import shallow_packing
from collhub_blink.packing.task import PackingTask
from hub_core.model import InputError

# Beyond this, proofs for one depth after the other take longer than what they may save.
_MOST_NODES_OF_A_FRONT = 24


def rooted_packings(task: PackingTask) -> list[PlacedPacking]:
    """Packings for a broadcast, or with all links turned round a reduce.

    Fewest trees, the rest of the front of trees and depth, one shallow tree.
    """
    network = task.oriented_network
    rate = broadcast_rate(network.graph, task.root)
    bound = cut_bound(network, rate)
    if network.is_direct:
        optimal = list(_optimal(task, network, int(rate.value), bound))
    else:
        optimal = list(_switched(task, network, bound))
    return [*optimal, shallow_packing(task, "one shallow tree", [task.root], bound)]


def _optimal(
    task: PackingTask,
    network: RankNetwork,
    total: int,
    bound: RateBound,
) -> Iterator[PlacedPacking]:
    """The front of trees and depth in a network without switches."""
    graph = network.graph
    grown = pack_arborescences(graph, task.root, total, seeds=task.seeds, first_seed=task.seed)
    for found in tree_front(task, graph, total, grown):
        yield PlacedPacking(
            method="fewest trees",
            trees=placed(network, found.trees, direct(graph), graph),
            unit=graph.unit,
            bound=bound,
            at_least=found.lower_bound,
            reason=found.reason,
        )


def _switched(
    task: PackingTask,
    network: RankNetwork,
    bound: RateBound,
) -> Iterator[PlacedPacking]:
    """Trees in a network with switches: these are split off first, in one way or another."""
    graph = network.graph
    if task.depth is not None:
        message = "depth: trees of a stated depth are not searched in networks with switches"
        raise InputError(message, code="depth")
    chain = chain_packing(task, bound)
    if chain is not None:
        yield chain
    # An all-gather to which the root alone contributes.
    sent = np.zeros(graph.num_compute, np.int64)
    sent[task.root] = 1
    # Spread traffic gives flatter trees, the rest fewer; the time of the schedules decides.
    known: list[tuple[PlacedTree, ...]] = []
    for spread in (SwitchSpread.NOWHERE, SwitchSpread.EVERYWHERE):
        found = all_gather_trees(
            graph,
            sent.tolist(),
            spread=spread,
            seeds=task.seeds,
            first_seed=task.seed,
        )
        trees = placed(network, found.trees, found.network, graph)
        # Both ways may lead to the same trees, whose schedules are the same.
        if trees in known:
            continue
        known.append(trees)
        unit = found.network.graph.unit
        yield PlacedPacking("trees through forwarders", trees, unit, bound)
    yield from rooted_machine_packings(task, bound)


def tree_front(
    task: PackingTask,
    graph: CapacityGraph,
    total: int,
    grown: Sequence[SpanningTree],
) -> list[Fewest]:
    """Packings of which none has both fewer trees and less depth than another.

    Fewest trees first, then ever shallower. Depths that the budget leaves open are passed over.
    With a stated depth, the fewest trees within it, and an `InputError` where there are none or
    none was found.
    """
    if task.depth is not None:
        return [_within_depth(task, graph, total, grown, task.depth)]
    front = [fewest_broadcast_trees(graph, task.root, total, grown, task.budget)]
    if graph.num_nodes > _MOST_NODES_OF_A_FRONT or task.budget.is_interrupted:
        return front
    depth = _depth(front[0].trees) - 1
    while depth > 0:
        try:
            found = fewest_broadcast_trees(graph, task.root, total, (), task.budget, depth)
        # A search without known trees passes Ctrl-C on; the front so far stands.
        except KeyboardInterrupt:
            task.budget.is_interrupted = True
            break
        if not found.trees:
            break
        # As many trees and shallower: the packing before is of no more use.
        if len(found.trees) == len(front[-1].trees):
            front.pop()
        front.append(found)
        depth = _depth(found.trees) - 1
    return front


def _within_depth(
    task: PackingTask,
    graph: CapacityGraph,
    total: int,
    grown: Sequence[SpanningTree],
    depth: int,
) -> Fewest:
    """The fewest trees within a stated depth."""
    # Trees that are too deep are no answer to fall back on.
    known = grown if _depth(grown) <= depth else ()
    found = fewest_broadcast_trees(graph, task.root, total, known, task.budget, depth)
    if not found.trees:
        raise _too_shallow(depth, found)
    return found


def _depth(trees: Sequence[SpanningTree]) -> int:
    """Hops of the deepest of one or more trees."""
    return max(tree.depth for tree in trees)


def _too_shallow(depth: int, found: Fewest) -> InputError:
    """The refusal of a depth, with what is known about it."""
    message = f"no trees of depth {depth} at the optimal rate were found"
    if found.lower_bound > 1:
        message += f" ({found.reason})"
    return InputError(
        message,
        cure="allow more with -O depth=, or more search with -O time_limit=",
        code="depth",
    )
