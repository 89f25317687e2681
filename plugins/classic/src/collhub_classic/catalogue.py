"""All algorithms by name, for every collective that they define."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from collhub_classic.algorithms import (
    bruck,
    butterflies,
    direct,
    double_tree,
    neighbour_exchange,
    pat,
    ring,
    swing,
    trees,
)
from collhub_classic.algorithms.folding import Fold
from collhub_classic.costs import AlphaBetaCost
from collhub_classic.grids import hierarchical, torus_rings
from collhub_classic.message_plan import MessagePlan
from collhub_classic.options import ChunkedOptions, PatOptions, RadixOptions
from collhub_classic.ring_sets import bidirectional_ring, several_rings, single_ring
from collhub_classic.task import ClassicAlgorithm, ClassicTask, PlannedAlgorithm, Planner, RankOrder
from hub_core.model import CollectiveKind, UsageError

PlanOf = Callable[[int], MessagePlan]
CostOf = Callable[[int], AlphaBetaCost]


class DirectedPlanner(Protocol):
    """Planner of an all-gather whose rings pass data to the next rank (1) or the previous (-1)."""

    def __call__(self, task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
        """Plan the all-gather."""


def _plain(plan_of: PlanOf, cost_of: CostOf) -> Planner:
    """An algorithm that needs the number of ranks alone."""

    def planned(task: ClassicTask) -> PlannedAlgorithm:
        """The plan for as many ranks, with its cost."""
        return PlannedAlgorithm(plan_of(task.num_ranks), cost_of(task.num_ranks), {})

    return planned


def _gathering(plan_of: PlanOf, cost_of: CostOf) -> dict[CollectiveKind, Planner]:
    """All-gather, reduce-scatter as its reverse, and all-reduce as the one after the other."""
    return gathering_planners(_plain(plan_of, cost_of))


def gathering_planners(
    gather: Planner, mirrored_gather: Planner | None = None
) -> dict[CollectiveKind, Planner]:
    """Planners of all-gather, reduce-scatter and all-reduce, given that of the all-gather.

    `mirrored_gather`: the all-gather whose reverse is the reduce-scatter, at the same cost; by
    default `gather`. Reversing turns every message round, so rings pass the all-gather in the
    opposite direction: both halves of their all-reduce then send over the same links, as in NCCL.
    """
    reversed_gather = mirrored_gather or gather

    def plan_reduce_scatter(task: ClassicTask) -> PlannedAlgorithm:
        """Run the all-gather backwards and reduce: the same cost."""
        planned = reversed_gather(task)
        return replace(planned, plan=planned.plan.backwards(reduces=True))

    def plan_all_reduce(task: ClassicTask) -> PlannedAlgorithm:
        """Run the reduce-scatter, then the all-gather."""
        scatter, gathered = plan_reduce_scatter(task), gather(task)
        plan = scatter.plan.then(gathered.plan)
        return replace(gathered, plan=plan, cost=scatter.cost + gathered.cost)

    return {
        CollectiveKind.ALL_GATHER: gather,
        CollectiveKind.REDUCE_SCATTER: plan_reduce_scatter,
        CollectiveKind.ALL_REDUCE: plan_all_reduce,
    }


def _ringwise(gather: DirectedPlanner) -> dict[CollectiveKind, Planner]:
    """Planners of an all-gather round rings, all of whose messages go in one direction."""
    return gathering_planners(partial(gather, direction=1), partial(gather, direction=-1))


def _rooted(
    broadcast: Planner, cost_of: Callable[[ClassicTask], AlphaBetaCost] | None = None
) -> dict[CollectiveKind, Planner]:
    """Broadcast, and reduce as its reverse.

    `cost_of`: of the reduce; by default as much as the broadcast. The ports of those that send
    count: a root that hears from many at once does not wait.
    """

    def reduced(task: ClassicTask) -> PlannedAlgorithm:
        found = broadcast(task)
        cost = found.cost if cost_of is None else cost_of(task)
        return PlannedAlgorithm(found.plan.backwards(reduces=True), cost, found.details)

    return {CollectiveKind.BROADCAST: broadcast, CollectiveKind.REDUCE: reduced}


def _scattering(
    plan_of: PlanOf, cost_of: CostOf, gather_cost_of: CostOf
) -> dict[CollectiveKind, Planner]:
    """Scatter, and gather as its reverse."""

    def gathered(task: ClassicTask) -> PlannedAlgorithm:
        plan = plan_of(task.num_ranks).backwards(reduces=False)
        return PlannedAlgorithm(plan, gather_cost_of(task.num_ranks), {})

    return {CollectiveKind.SCATTER: _plain(plan_of, cost_of), CollectiveKind.GATHER: gathered}


def _chain(task: ClassicTask) -> PlannedAlgorithm:
    """(n - 2 + c) (alpha + m beta / c) is least for c = sqrt((n - 2) m beta / alpha)."""
    chunks = _chunks(task, max(1, task.num_ranks - 2))
    plan = ring.chain_broadcast(task.num_ranks, chunks)
    return PlannedAlgorithm(plan, ring.chain_cost(task.num_ranks, chunks), {"chunks": chunks})


def _double_tree(task: ClassicTask) -> PlannedAlgorithm:
    # Links are never without work for long: as many chunks as a tree is deep pay for themselves.
    chunks = _chunks(task, 2 * max(1, (task.num_ranks - 1).bit_length()))
    plan = double_tree.double_tree_all_reduce(task.num_ranks, chunks)
    cost = double_tree.double_tree_cost(task.num_ranks, chunks)
    return PlannedAlgorithm(plan, cost, {"chunks": chunks})


def _chunks(task: ClassicTask, hops: int) -> int:
    """The stated number of chunks, or the one of least cost behind so many hops."""
    stated = cast("ChunkedOptions", task.options).chunks
    if stated:
        return stated
    busy_s = task.collective_bytes * task.beta_s_per_byte
    best = math.sqrt(hops * busy_s / task.alpha_s) if task.alpha_s > 0 else _MOST_CHUNKS
    return max(1, min(round(best), _MOST_CHUNKS, task.collective_bytes))


_MOST_CHUNKS = 64
"""More chunks make larger files than better times."""


def _knomial(task: ClassicTask) -> PlannedAlgorithm:
    radix = cast("RadixOptions", task.options).radix
    plan = trees.knomial_broadcast(task.num_ranks, radix)
    return PlannedAlgorithm(plan, trees.knomial_cost(task.num_ranks, radix), {"radix": radix})


def _binomial(task: ClassicTask) -> PlannedAlgorithm:
    plan = trees.knomial_broadcast(task.num_ranks, 2)
    return PlannedAlgorithm(plan, trees.knomial_cost(task.num_ranks, 2), {})


def _binomial_all_reduce(task: ClassicTask) -> PlannedAlgorithm:
    found = _binomial(task)
    plan = found.plan.backwards(reduces=True).then(found.plan)
    return PlannedAlgorithm(plan, _tree_reduce_cost(task) + found.cost, {})


def _tree_reduce_cost(task: ClassicTask) -> AlphaBetaCost:
    """Of the tree of the stated radix, a binomial one where there is no such option."""
    options = task.options
    radix = options.radix if isinstance(options, RadixOptions) else 2
    return trees.knomial_reduce_cost(task.num_ranks, radix)


def _pat(task: ClassicTask) -> PlannedAlgorithm:
    largest = pat.largest_aggregation(task.num_ranks)
    stated = cast("PatOptions", task.options).aggregation
    # A power of two has no bit in common with the number below; 0 asks for the largest.
    if stated & (stated - 1) or stated > largest:
        raise UsageError(
            f"option aggregation: {stated} is not a power of two up to {largest}",
            cure="leave it away, or name for example 1 or 2",
            code="option-range",
        )
    used = stated or largest
    plan = pat.pat_all_gather(task.num_ranks, used)
    return PlannedAlgorithm(plan, pat.pat_cost(task.num_ranks, used), {"aggregation": used})


def _neighbours(task: ClassicTask) -> PlannedAlgorithm:
    if task.num_ranks % 2:
        raise UsageError(
            f"neighbours exchange in pairs, but there are {task.num_ranks} ranks",
            cure="choose another algorithm, such as bruck or ring",
            code="odd-ranks",
        )
    plan = neighbour_exchange.neighbour_all_gather(task.num_ranks)
    return PlannedAlgorithm(plan, neighbour_exchange.neighbour_cost(task.num_ranks), {})


def _check_power_of_two(task: ClassicTask) -> None:
    """Refuse other numbers of ranks, for which there is the all-reduce alone."""
    if Fold(task.num_ranks).extra:
        raise UsageError(
            f"this {task.kind} needs a power of two ranks, but there are {task.num_ranks}",
            cure="choose another algorithm, such as bruck, pat or ring",
            code="not-a-power",
        )


def _halving(task: ClassicTask) -> PlannedAlgorithm:
    _check_power_of_two(task)
    plan = butterflies.doubling_all_gather(task.num_ranks).backwards(reduces=True)
    return PlannedAlgorithm(plan, butterflies.doubling_all_gather_cost(task.num_ranks), {})


def _swing(task: ClassicTask) -> PlannedAlgorithm:
    """Swing's all-gather. Raises `UsageError` where the ranks are not a power of two."""
    _check_power_of_two(task)
    cost = butterflies.doubling_all_gather_cost(task.num_ranks)
    return PlannedAlgorithm(swing.swing_all_gather(task.num_ranks), cost, {})


_DIRECT = {
    **_gathering(direct.direct_all_gather, direct.direct_share_cost),
    **_rooted(
        _plain(direct.direct_broadcast, direct.direct_vector_cost),
        lambda task: direct.direct_reduce_cost(),
    ),
    **_scattering(direct.direct_scatter, direct.direct_share_cost, direct.direct_gather_cost),
    CollectiveKind.ALL_TO_ALL: _plain(direct.direct_all_to_all, direct.direct_share_cost),
}
_BINOMIAL = {
    **_rooted(_binomial, _tree_reduce_cost),
    **_scattering(trees.binomial_scatter, trees.binomial_scatter_cost, trees.binomial_gather_cost),
    CollectiveKind.ALL_REDUCE: _binomial_all_reduce,
}
_BRUCK = {
    **_gathering(bruck.bruck_all_gather, bruck.bruck_all_gather_cost),
    CollectiveKind.ALL_TO_ALL: _plain(bruck.bruck_all_to_all, bruck.bruck_all_to_all_cost),
}
_DOUBLING = {
    CollectiveKind.ALL_GATHER: _plain(
        butterflies.doubling_all_gather, butterflies.doubling_all_gather_cost
    ),
    CollectiveKind.ALL_REDUCE: _plain(
        butterflies.doubling_all_reduce, butterflies.doubling_all_reduce_cost
    ),
}
_HALVING = {
    CollectiveKind.REDUCE_SCATTER: _halving,
    CollectiveKind.ALL_REDUCE: _plain(
        butterflies.halving_all_reduce, butterflies.halving_all_reduce_cost
    ),
}
_SWING = {
    **gathering_planners(_swing),
    CollectiveKind.ALL_REDUCE: _plain(swing.swing_all_reduce, butterflies.halving_all_reduce_cost),
}
_RING = {**_ringwise(single_ring), **_rooted(_chain)}

ALGORITHMS: Mapping[str, ClassicAlgorithm] = {
    "ring": ClassicAlgorithm(_RING, order=RankOrder.RING),
    "bidirectional-ring": ClassicAlgorithm(
        _ringwise(bidirectional_ring), has_many_ports=True, order=RankOrder.RING
    ),
    "rings": ClassicAlgorithm(_ringwise(several_rings), has_many_ports=True),
    "recursive-doubling": ClassicAlgorithm(_DOUBLING, order=RankOrder.GROUPS),
    "halving-doubling": ClassicAlgorithm(_HALVING, order=RankOrder.GROUPS),
    "bruck": ClassicAlgorithm(_BRUCK, order=RankOrder.GROUPS),
    "binomial": ClassicAlgorithm(_BINOMIAL, order=RankOrder.GROUPS),
    "k-nomial": ClassicAlgorithm(_rooted(_knomial, _tree_reduce_cost), order=RankOrder.GROUPS),
    "double-binary-tree": ClassicAlgorithm(
        {CollectiveKind.ALL_REDUCE: _double_tree}, has_many_ports=True, order=RankOrder.RING
    ),
    "direct": ClassicAlgorithm(_DIRECT),
    "pairwise": ClassicAlgorithm(
        {CollectiveKind.ALL_TO_ALL: _plain(direct.pairwise_all_to_all, direct.pairwise_cost)}
    ),
    "neighbour-exchange": ClassicAlgorithm(gathering_planners(_neighbours), order=RankOrder.RING),
    "pat": ClassicAlgorithm(gathering_planners(_pat), order=RankOrder.GROUPS),
    "sparbit": ClassicAlgorithm(
        _gathering(pat.sparbit_all_gather, bruck.bruck_all_gather_cost), order=RankOrder.GROUPS
    ),
    "swing": ClassicAlgorithm(_SWING, order=RankOrder.RING),
    "torus-rings": ClassicAlgorithm(_ringwise(torus_rings), has_many_ports=True),
    "hierarchical": ClassicAlgorithm(_ringwise(hierarchical)),
}
