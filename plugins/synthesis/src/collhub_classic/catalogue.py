"""The table of all algorithms: by name, the planner of every collective that they define."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from collhub_classic import exchanges, logarithmic
from collhub_classic.logarithmic import Fold
from collhub_classic.message_plan import (
    AlphaBetaCost,
    ClassicAlgorithm,
    ClassicTask,
    MessagePlan,
    PlannedAlgorithm,
    Planner,
    RankOrder,
)
from collhub_classic.plugin import ChunkedOptions, PatOptions, RadixOptions
from collhub_classic.topology_planners import (
    plan_bidirectional_ring,
    plan_hierarchical,
    plan_several_rings,
    plan_single_ring,
    plan_torus_rings,
)
from hub_core.model import CollectiveKind, UsageError

PlanOf = Callable[[int], MessagePlan]
CostOf = Callable[[int], AlphaBetaCost]


class DirectedPlanner(Protocol):
    """Planner of an all-gather whose rings pass data to the next rank (1) or the previous
    one (-1).
    """

    def __call__(self, task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
        """Plan the all-gather with its cost; `direction`: of the messages on the ring, 1 or -1."""


def _build_planner(plan_of: PlanOf, cost_of: CostOf) -> Planner:
    """Return a planner for algorithms whose plan and cost depend only on the number of ranks.

    `plan_of` and `cost_of` take the number of ranks. The planned algorithm has no details.
    """

    def plan(task: ClassicTask) -> PlannedAlgorithm:
        """Plan for the task's number of ranks, with the cost."""
        return PlannedAlgorithm(plan_of(task.num_ranks), cost_of(task.num_ranks), {})

    return plan


def _build_gathering_planners(plan_of: PlanOf, cost_of: CostOf) -> dict[CollectiveKind, Planner]:
    """Build the planners of an all-gather that needs only the number of ranks.

    All-gather, reduce-scatter (its reverse) and all-reduce (one after the other).
    """
    return build_gathering_planners(_build_planner(plan_of, cost_of))


def build_gathering_planners(
    gather: Planner, mirrored_gather: Planner | None = None
) -> dict[CollectiveKind, Planner]:
    """Make planners of all-gather, reduce-scatter and all-reduce from those of an all-gather.

    The result has one planner per kind. The all-gather is `gather` itself. The reduce-scatter is
    the all-gather of `mirrored_gather` (default: `gather`) with all messages reversed and reduced;
    it has the same cost and details. The all-reduce is this reduce-scatter followed by the
    all-gather; the costs add up, and the details are those of `gather`.

    Reversing changes the direction of every message. Rings therefore pass the all-gather in the
    opposite direction as `mirrored_gather`, so that both halves of the all-reduce send over the
    same links, as in NCCL.
    """
    reversed_gather = mirrored_gather or gather

    def plan_reduce_scatter(task: ClassicTask) -> PlannedAlgorithm:
        """Plan the reduce-scatter as the reversed all-gather.

        Every message is sent from the receiver to the sender, rounds are in reverse order, and
        receivers add the data. Cost and details are those of the reversed all-gather.
        """
        planned = reversed_gather(task)
        return replace(planned, plan=planned.plan.backwards(reduces=True))

    def plan_all_reduce(task: ClassicTask) -> PlannedAlgorithm:
        """Plan the reduce-scatter, then the all-gather, one after the other.

        The costs add up; the details are those of the all-gather.
        """
        scatter, gathered = plan_reduce_scatter(task), gather(task)
        plan = scatter.plan.then(gathered.plan)
        return replace(gathered, plan=plan, cost=scatter.cost + gathered.cost)

    return {
        CollectiveKind.ALL_GATHER: gather,
        CollectiveKind.REDUCE_SCATTER: plan_reduce_scatter,
        CollectiveKind.ALL_REDUCE: plan_all_reduce,
    }


def _build_ring_planners(gather: DirectedPlanner) -> dict[CollectiveKind, Planner]:
    """Build the planners of an all-gather along rings, with all messages of a collective in one
    direction.
    """
    return build_gathering_planners(partial(gather, direction=1), partial(gather, direction=-1))


def _build_rooted_planners(
    broadcast: Planner, cost_of: Callable[[ClassicTask], AlphaBetaCost] | None = None
) -> dict[CollectiveKind, Planner]:
    """Return planners of broadcast and reduce by kind; the reduce is the reversed broadcast.

    The planner of the broadcast is `broadcast` itself. The planner of the reduce calls it for the
    same task. It reverses the order of rounds and the direction of all messages, and receivers
    reduce the data. Details are those of the broadcast. `cost_of`: cost of the reduce for a task,
    by default that of the broadcast. It can be lower than that of the broadcast: the cost counts
    the time in which a rank sends, not that in which it receives. So a root that receives from
    several ranks at once does not wait.
    """

    def plan_reduce(task: ClassicTask) -> PlannedAlgorithm:
        """Plan a reduce as the reversed broadcast, in which every message is reduced.

        The details are those of the broadcast. The cost is that of `cost_of`, or of the broadcast
        without it.
        """
        planned = broadcast(task)
        cost = planned.cost if cost_of is None else cost_of(task)
        return PlannedAlgorithm(planned.plan.backwards(reduces=True), cost, planned.details)

    return {CollectiveKind.BROADCAST: broadcast, CollectiveKind.REDUCE: plan_reduce}


def _build_scatter_planners(
    plan_of: PlanOf, cost_of: CostOf, gather_cost_of: CostOf
) -> dict[CollectiveKind, Planner]:
    """Return planners of scatter and gather by kind, from the plan and the costs of a scatter.

    All three functions take the number of ranks, the only property of a task that is used. The
    gather has the rounds of the scatter in reverse order, and all messages in the opposite
    direction, without sums. Its cost is `gather_cost_of`, that of the scatter is `cost_of`. Neither
    has details.
    """

    def plan_gather(task: ClassicTask) -> PlannedAlgorithm:
        """Plan the gather as the reversed scatter, without sums.

        Every message of the scatter is sent in the opposite direction, and the rounds are in
        reverse order. The cost is `gather_cost_of(n)` for n ranks; there are no details.
        """
        plan = plan_of(task.num_ranks).backwards(reduces=False)
        return PlannedAlgorithm(plan, gather_cost_of(task.num_ranks), {})

    return {
        CollectiveKind.SCATTER: _build_planner(plan_of, cost_of),
        CollectiveKind.GATHER: plan_gather,
    }


def _plan_chain(task: ClassicTask) -> PlannedAlgorithm:
    """Plan a broadcast along the chain of ranks 0, 1, 2, ..., with the vector split into c
    chunks.

    c is the option `chunks` if it is not 0. Otherwise it is about sqrt(max(1, n - 2) m
    beta / alpha), limited as in `_choose_chunks`, for n ranks, m bytes, latency alpha and
    time per byte beta. This minimizes the cost (n - 2 + c) (alpha + m beta / c). The only
    detail of the result is `chunks`, with the value c.
    """
    chunks = _choose_chunks(task, max(1, task.num_ranks - 2))
    plan = exchanges.plan_chain_broadcast(task.num_ranks, chunks)
    return PlannedAlgorithm(
        plan, exchanges.compute_chain_cost(task.num_ranks, chunks), {"chunks": chunks}
    )


def _plan_double_tree(task: ClassicTask) -> PlannedAlgorithm:
    """Plan an all-reduce on NCCL's two trees, each of which reduces and broadcasts half of
    the data.

    The number of chunks per tree is the option `chunks` if it is not 0, else that of
    `_choose_chunks` for a path of 2 ceil(log2 n) messages (at least 2) among n ranks. It
    is the only detail of the result, `chunks`. The cost is that of
    `compute_double_tree_cost`.
    """
    chunks = _choose_chunks(task, 2 * max(1, (task.num_ranks - 1).bit_length()), trees=2)
    plan = exchanges.plan_double_tree_all_reduce(task.num_ranks, chunks)
    cost = exchanges.compute_double_tree_cost(task.num_ranks, chunks)
    return PlannedAlgorithm(plan, cost, {"chunks": chunks})


def _choose_chunks(task: ClassicTask, hops: int, trees: int = 1) -> int:
    """Return the number of chunks per tree: the option `chunks`, or the best one if it is 0.

    The option's value is returned unchecked. The best is sqrt(`hops` * m beta / alpha) for m bytes,
    rounded, at least 1, and at most `_MAX_CHUNKS` and m. If alpha is 0 it is the smaller of these
    two limits. `hops`: messages one after another on the longest path. If the task restricts the
    numbers of units, `task.units` chooses an allowed number for `trees` trees near the best; if
    none is allowed, the best is returned and a later check reports the reason. Precondition, not
    checked: the options have `chunks`.
    """
    requested = cast("ChunkedOptions", task.options).chunks
    if requested:
        return requested
    busy_s = task.collective_bytes * task.beta_s_per_byte
    best = math.sqrt(hops * busy_s / task.alpha_s) if task.alpha_s > 0 else _MAX_CHUNKS
    chunks = max(1, min(round(best), _MAX_CHUNKS, task.collective_bytes))
    if task.units is None:
        return chunks
    # Without an allowed number, the check of the plan reports the reason.
    return task.units.choose_count(trees, chunks) or chunks


_MAX_CHUNKS = 64
"""More chunks increase files more than they reduce times."""


def _plan_knomial(task: ClassicTask) -> PlannedAlgorithm:
    """Plan a broadcast from rank 0 on a k-nomial tree, with the cost of `compute_knomial_cost`.

    In each round, each rank with the data sends it to up to k - 1 other ranks. k is the
    option `radix` (at least 2), and the only detail of the result.
    """
    radix = cast("RadixOptions", task.options).radix
    plan = exchanges.plan_knomial_broadcast(task.num_ranks, radix)
    return PlannedAlgorithm(
        plan, exchanges.compute_knomial_cost(task.num_ranks, radix), {"radix": radix}
    )


def _plan_binomial(task: ClassicTask) -> PlannedAlgorithm:
    """Plan a broadcast from rank 0 on a binomial tree, with its cost and without details.

    The ranks with the data double in each round, in the last one up to the number of
    ranks. The entire buffer is one message.
    """
    plan = exchanges.plan_knomial_broadcast(task.num_ranks, 2)
    return PlannedAlgorithm(plan, exchanges.compute_knomial_cost(task.num_ranks, 2), {})


def _plan_binomial_all_reduce(task: ClassicTask) -> PlannedAlgorithm:
    """Plan an all-reduce on a binomial tree: a reduce to rank 0, then a broadcast from it.

    The cost is the sum of both (`_compute_tree_reduce_cost`, `_plan_binomial`); there are
    no details. The options of the task must not be `RadixOptions`, because the cost of
    the reduce would be that of another tree; this is not checked.
    """
    planned = _plan_binomial(task)
    plan = planned.plan.backwards(reduces=True).then(planned.plan)
    return PlannedAlgorithm(plan, _compute_tree_reduce_cost(task) + planned.cost, {})


def _compute_tree_reduce_cost(task: ClassicTask) -> AlphaBetaCost:
    """Compute the cost of a reduce on a k-nomial tree: depth of the tree x (alpha + m beta).

    k is the option `radix`, or 2 without it; m: bytes of the collective. A rank receives from
    several senders at once. For the depth see `compute_knomial_reduce_cost`.
    """
    options = task.options
    radix = options.radix if isinstance(options, RadixOptions) else 2
    return exchanges.compute_knomial_reduce_cost(task.num_ranks, radix)


def _plan_pat(task: ClassicTask) -> PlannedAlgorithm:
    """Plan PAT's all-gather for any number of ranks, with its cost and the detail `aggregation`.

    The option `aggregation` is the largest number of blocks in a message. 0 means the maximum: half
    of the smallest power of two that is at least the number of ranks, but at least 1. Raises
    `UsageError` (`option-range`) if it is not a power of two or exceeds the maximum.
    """
    largest = logarithmic.find_largest_aggregation(task.num_ranks)
    requested = cast("PatOptions", task.options).aggregation
    # A power of two has no bit in common with the number below it; 0 requests the largest.
    if requested & (requested - 1) or requested > largest:
        raise UsageError(
            f"option aggregation: {requested} is not a power of two up to {largest}",
            cure="omit the option, or give for example 1 or 2",
            code="option-range",
        )
    aggregation = requested or largest
    plan = logarithmic.plan_pat_all_gather(task.num_ranks, aggregation)
    return PlannedAlgorithm(
        plan,
        logarithmic.compute_pat_cost(task.num_ranks, aggregation),
        {"aggregation": aggregation},
    )


def _plan_neighbour_exchange(task: ClassicTask) -> PlannedAlgorithm:
    """Plan an all-gather by neighbour exchange, with its cost and without details.

    Raises `UsageError` (`odd-ranks`) for an odd number of ranks, because neighbours exchange in
    pairs.
    """
    if task.num_ranks % 2:
        raise UsageError(
            f"neighbours exchange in pairs, but there are {task.num_ranks} ranks",
            cure="choose another algorithm, such as bruck or ring",
            code="odd-ranks",
        )
    plan = exchanges.plan_neighbour_all_gather(task.num_ranks)
    return PlannedAlgorithm(plan, exchanges.compute_neighbour_cost(task.num_ranks), {})


def _check_power_of_two(task: ClassicTask) -> None:
    """Raise `UsageError` (code `not-a-power`) unless the number of ranks is a power of two."""
    if Fold(task.num_ranks).extra:
        raise UsageError(
            f"this {task.kind} needs a power of two ranks, but there are {task.num_ranks}",
            cure="choose another algorithm, such as bruck, pat or ring",
            code="not-a-power",
        )


def _plan_halving(task: ClassicTask) -> PlannedAlgorithm:
    """Plan a reduce-scatter by recursive halving: the all-gather by doubling, reversed, with sums.

    The cost is that of the all-gather; there are no details. Raises `UsageError` (`not-a-power`)
    unless the number of ranks is a power of two.
    """
    _check_power_of_two(task)
    plan = logarithmic.plan_doubling_all_gather(task.num_ranks).backwards(reduces=True)
    return PlannedAlgorithm(plan, logarithmic.compute_doubling_all_gather_cost(task.num_ranks), {})


def _plan_swing(task: ClassicTask) -> PlannedAlgorithm:
    """Plan Swing's all-gather, with the cost of an all-gather by recursive doubling.

    There are no details. Raises `UsageError` (`not-a-power`) unless the number of ranks
    is a power of two, including 1.
    """
    _check_power_of_two(task)
    cost = logarithmic.compute_doubling_all_gather_cost(task.num_ranks)
    return PlannedAlgorithm(logarithmic.plan_swing_all_gather(task.num_ranks), cost, {})


_DIRECT = {
    **_build_gathering_planners(
        exchanges.plan_direct_all_gather, exchanges.compute_direct_share_cost
    ),
    **_build_rooted_planners(
        _build_planner(exchanges.plan_direct_broadcast, exchanges.compute_direct_vector_cost),
        lambda task: exchanges.compute_direct_reduce_cost(),
    ),
    **_build_scatter_planners(
        exchanges.plan_direct_scatter,
        exchanges.compute_direct_share_cost,
        exchanges.compute_direct_gather_cost,
    ),
    CollectiveKind.ALL_TO_ALL: _build_planner(
        exchanges.plan_direct_all_to_all, exchanges.compute_direct_share_cost
    ),
}
_BINOMIAL = {
    **_build_rooted_planners(_plan_binomial, _compute_tree_reduce_cost),
    **_build_scatter_planners(
        exchanges.plan_binomial_scatter,
        exchanges.compute_binomial_scatter_cost,
        exchanges.compute_binomial_gather_cost,
    ),
    CollectiveKind.ALL_REDUCE: _plan_binomial_all_reduce,
}
_BRUCK = {
    **_build_gathering_planners(
        logarithmic.plan_bruck_all_gather, logarithmic.compute_bruck_all_gather_cost
    ),
    CollectiveKind.ALL_TO_ALL: _build_planner(
        logarithmic.plan_bruck_all_to_all, logarithmic.compute_bruck_all_to_all_cost
    ),
}
_DOUBLING = {
    CollectiveKind.ALL_GATHER: _build_planner(
        logarithmic.plan_doubling_all_gather, logarithmic.compute_doubling_all_gather_cost
    ),
    CollectiveKind.ALL_REDUCE: _build_planner(
        logarithmic.plan_doubling_all_reduce, logarithmic.compute_doubling_all_reduce_cost
    ),
}
_HALVING = {
    CollectiveKind.REDUCE_SCATTER: _plan_halving,
    CollectiveKind.ALL_REDUCE: _build_planner(
        logarithmic.plan_halving_all_reduce, logarithmic.compute_halving_all_reduce_cost
    ),
}
_SWING = {
    **build_gathering_planners(_plan_swing),
    CollectiveKind.ALL_REDUCE: _build_planner(
        logarithmic.plan_swing_all_reduce, logarithmic.compute_halving_all_reduce_cost
    ),
}
_RING = {**_build_ring_planners(plan_single_ring), **_build_rooted_planners(_plan_chain)}

ALGORITHMS: Mapping[str, ClassicAlgorithm] = {
    "ring": ClassicAlgorithm(_RING, order=RankOrder.RING),
    "bidirectional-ring": ClassicAlgorithm(
        _build_ring_planners(plan_bidirectional_ring), has_many_ports=True, order=RankOrder.RING
    ),
    "rings": ClassicAlgorithm(_build_ring_planners(plan_several_rings), has_many_ports=True),
    "recursive-doubling": ClassicAlgorithm(_DOUBLING, order=RankOrder.GROUPS),
    "halving-doubling": ClassicAlgorithm(_HALVING, order=RankOrder.GROUPS),
    "bruck": ClassicAlgorithm(_BRUCK, order=RankOrder.GROUPS),
    "binomial": ClassicAlgorithm(_BINOMIAL, order=RankOrder.GROUPS),
    "k-nomial": ClassicAlgorithm(
        _build_rooted_planners(_plan_knomial, _compute_tree_reduce_cost), order=RankOrder.GROUPS
    ),
    "double-binary-tree": ClassicAlgorithm(
        {CollectiveKind.ALL_REDUCE: _plan_double_tree}, has_many_ports=True, order=RankOrder.RING
    ),
    "direct": ClassicAlgorithm(_DIRECT),
    "pairwise": ClassicAlgorithm(
        {
            CollectiveKind.ALL_TO_ALL: _build_planner(
                exchanges.plan_pairwise_all_to_all, exchanges.compute_pairwise_cost
            )
        }
    ),
    "neighbour-exchange": ClassicAlgorithm(
        build_gathering_planners(_plan_neighbour_exchange), order=RankOrder.RING
    ),
    "pat": ClassicAlgorithm(build_gathering_planners(_plan_pat), order=RankOrder.GROUPS),
    "sparbit": ClassicAlgorithm(
        _build_gathering_planners(
            logarithmic.plan_sparbit_all_gather, logarithmic.compute_bruck_all_gather_cost
        ),
        order=RankOrder.GROUPS,
    ),
    "swing": ClassicAlgorithm(_SWING, order=RankOrder.RING),
    "torus-rings": ClassicAlgorithm(_build_ring_planners(plan_torus_rings), has_many_ports=True),
    "hierarchical": ClassicAlgorithm(_build_ring_planners(plan_hierarchical)),
}
