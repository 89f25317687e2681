"""Algorithms along dimensions: which dimensions, and how many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import cast

import numpy as np

from collhub_classic.algorithms.dimensions import AxisCost, AxisPlan, grid_all_gather, grid_cost
from collhub_classic.algorithms.direct import direct_all_gather, direct_share_cost
from collhub_classic.algorithms.ring import ring_all_gather, ring_cost
from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import beside
from collhub_classic.options import GridOptions
from collhub_classic.orders import alike_groups
from collhub_classic.task import ClassicTask, PlannedAlgorithm
from hub_core.model import UsageError


def torus_rings(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """All-gather by rings along every dimension; dimensions of one size are used all at once.

    Parts of the data begin with different dimensions, or go round the other way, so that no two
    are on one link. `direction` (1 or -1) reverses all rings.
    """
    sizes = _sizes(task, _dimensions_of(task))
    count = len(sizes)
    firsts, strides = _parts(task, sizes)
    cost_of: list[AxisCost] = [ring_cost] * count
    orders = [[(first + axis) % count for axis in range(count)] for first in range(firsts)]
    plans = []
    for order in orders:
        for stride in strides:
            plan_of: list[AxisPlan] = [partial(ring_all_gather, stride=direction * stride)] * count
            plans.append(grid_all_gather(sizes, order, plan_of))
    cost = grid_cost(sizes, orders[0], cost_of)
    shared = AlphaBetaCost(cost.alphas, cost.betas * Fraction(1, len(plans)))
    return PlannedAlgorithm(beside(plans), shared, _details(sizes))


def hierarchical(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """All-gather by rings between groups, the farthest level first, then among all in a group.

    `direction` (1 or -1) reverses all rings.
    """
    sizes = _sizes(task, _groups_of(task))
    between = partial(ring_all_gather, stride=direction)
    plan_of: list[AxisPlan] = [direct_all_gather, *[between] * (len(sizes) - 1)]
    cost_of: list[AxisCost] = [direct_share_cost, *[ring_cost] * (len(sizes) - 1)]
    axes = list(reversed(range(len(sizes))))
    plan = grid_all_gather(sizes, axes, plan_of)
    return PlannedAlgorithm(plan, grid_cost(sizes, axes, cost_of), _details(sizes))


def _sizes(task: ClassicTask, found: Sequence[int]) -> list[int]:
    """The stated sizes, or those of the topology without dimensions of one rank."""
    stated = cast("GridOptions", task.options).sizes
    sizes = list(found) if stated == "auto" else _parsed(stated)
    product = 1
    for size in sizes:
        product *= size
    if product != task.num_ranks:
        raise UsageError(
            f"option sizes: {'x'.join(map(str, sizes))} is not {task.num_ranks} ranks",
            cure="name sizes whose product is the number of ranks, as 4x2",
            code="option-range",
        )
    return [size for size in sizes if size > 1] or [1]


def _parsed(text: str) -> list[int]:
    """`8x4` to [8, 4]. Raises `UsageError`."""
    parts = text.split("x")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 20 for part in parts):
        raise UsageError(
            f"option sizes: {text[:60]!r} is not a list of sizes",
            cure="write for example 8x4",
            code="option-value",
        )
    return [int(part) for part in parts]


def _dimensions_of(task: ClassicTask) -> Sequence[int]:
    """The dimensions of a regular topology, else the most square grid of two."""
    sizes = [dimension.size for dimension in task.topology.dimensions]
    if sizes and task.num_ranks == task.topology.num_npus:
        return sizes
    side = max(
        side for side in range(1, int(task.num_ranks**0.5) + 1) if task.num_ranks % side == 0
    )
    return [task.num_ranks // side, side]


def _groups_of(task: ClassicTask) -> Sequence[int]:
    """Ranks of a group, and groups: those of the topology where they are alike, else as a grid."""
    groups = alike_groups(task.topology, task.npus)
    is_in_order = np.array_equal(groups.ravel(), np.arange(task.num_ranks))
    if len(groups) > 1 and is_in_order:
        return [groups.shape[1], len(groups)]
    return _dimensions_of(task)


def _parts(task: ClassicTask, sizes: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """With how many dimensions parts of the data begin, and the ways round."""
    ports = cast("GridOptions", task.options).ports
    if ports == "one":
        return 1, (1,)
    # Between two ranks both ways round are the same link.
    strides = (1, -1) if min(sizes) > 2 else (1,)
    is_even = len(set(sizes)) == 1
    return (len(sizes) if is_even or ports == "all" else 1), strides


def _details(sizes: Sequence[int]) -> dict[str, int | str]:
    return {"sizes": "x".join(map(str, sizes))}
