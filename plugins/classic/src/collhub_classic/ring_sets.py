"""All-gathers over one ring, over both directions of it, and over rings without a common link.

`direction`: 1 passes data to the next rank of the order, -1 to the previous one.
"""

from __future__ import annotations

from fractions import Fraction
from typing import cast

from collhub_classic.algorithms.ring import ring_all_gather, ring_cost
from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import beside
from collhub_classic.options import RingsOptions
from collhub_classic.orders import disjoint_rings
from collhub_classic.task import ClassicTask, PlannedAlgorithm
from hub_core.model import UsageError


def single_ring(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """One ring: (n - 1) (alpha + m beta / n)."""
    ranks = task.num_ranks
    return PlannedAlgorithm(ring_all_gather(ranks, direction), ring_cost(ranks), {})


def bidirectional_ring(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """Half of the data in each direction: (n - 1) (alpha + m beta / 2 n) for n > 2."""
    ranks = task.num_ranks
    plan = beside([ring_all_gather(ranks, direction), ring_all_gather(ranks, -direction)])
    # Between two ranks both ways round are the same link.
    return PlannedAlgorithm(plan, _shared(ring_cost(ranks), 2 if ranks > 2 else 1), {})


def several_rings(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """k rings without a common link: (n - 1) (alpha + m beta / k n)."""
    ranks = task.num_ranks
    wanted = cast("RingsOptions", task.options).rings
    found = disjoint_rings(task.topology, task.npus, wanted or _MOST_RINGS)
    if len(found) < wanted:
        raise UsageError(
            f"option rings: {len(found)} rings without a common link were found, not {wanted}",
            cure="ask for fewer, or leave it away",
            code="option-range",
        )
    gather = ring_all_gather(ranks, direction)
    plan = beside([gather.renamed(order, order) for order in found])
    return PlannedAlgorithm(plan, _shared(ring_cost(ranks), len(found)), {"rings": len(found)})


_MOST_RINGS = 16
"""More rings cut the data in more pieces than links can gain."""


def _shared(cost: AlphaBetaCost, ports: int) -> AlphaBetaCost:
    """The cost where the data is shared out to so many links."""
    return AlphaBetaCost(cost.alphas, cost.betas * Fraction(1, ports))
