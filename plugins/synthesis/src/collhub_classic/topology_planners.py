"""Planners that use the topology: all-gathers along rings and along the dimensions of grids.

`direction`: 1 passes data to the next rank of the order, -1 to the previous one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import cast

import numpy as np

from collhub_classic.exchanges import (
    AxisCost,
    AxisPlan,
    compute_direct_share_cost,
    compute_grid_cost,
    compute_ring_cost,
    plan_direct_all_gather,
    plan_grid_all_gather,
    plan_ring_all_gather,
)
from collhub_classic.message_plan import (
    AlphaBetaCost,
    ClassicTask,
    PlannedAlgorithm,
    combine_in_parallel,
)
from collhub_classic.orders import find_disjoint_rings, find_equal_groups
from collhub_classic.plugin import ClassicOptions, GridOptions, RingsOptions
from hub_core.columns import Int64Array
from hub_core.model import UsageError, parse_whole


def plan_single_ring(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """Plan an all-gather on one ring of n ranks, with the cost (n - 1) (alpha + m beta / n).

    m is the size of the full buffer in bytes. `direction`: 1 sends to the next rank, -1
    to the previous one. There are no details.
    """
    ranks = task.num_ranks
    return PlannedAlgorithm(plan_ring_all_gather(ranks, direction), compute_ring_cost(ranks), {})


def plan_bidirectional_ring(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """Plan an all-gather on a ring of n ranks, with half of every block in each direction.

    The first half is sent in `direction` (1: to the next rank, -1: to the previous one), the other
    against it. The cost is (n - 1) (alpha + m beta / (2 n)) for n > 2, with the latency alpha, the
    time per byte beta and the m bytes of the full buffer. Two ranks use one link for both halves,
    so the cost is that of a single ring.
    """
    ranks = task.num_ranks
    plan = combine_in_parallel(
        [plan_ring_all_gather(ranks, direction), plan_ring_all_gather(ranks, -direction)]
    )
    # Between two ranks both directions use the same link.
    return PlannedAlgorithm(
        plan, _divide_among_ports(compute_ring_cost(ranks), 2 if ranks > 2 else 1), {}
    )


def plan_several_rings(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """Plan an all-gather on k rings, each of which carries 1/k of every block.

    The rings are those of `find_disjoint_rings`: at most as many as the option `rings`, or
    `_MAX_RINGS` (16) for 0. They share no link, unless the topology has no such rings; then
    they may share links. There is always at least one. k is the number of rings that are found.

    With n ranks and m bytes, the cost is (n - 1) (alpha + m beta / (k n)). The detail `rings`
    is k. `direction`: 1 sends along the rings, -1 against them. Raises `UsageError`
    (`option-range`) if k is less than the option `rings`.
    """
    ranks = task.num_ranks
    requested = cast("RingsOptions", task.options).rings
    orders = find_disjoint_rings(task.topology, task.npus, requested or _MAX_RINGS)
    if len(orders) < requested:
        raise UsageError(
            f"option rings: {len(orders)} rings without a common link were found, not {requested}",
            cure="request fewer, or omit the option",
            code="option-range",
        )
    gather = plan_ring_all_gather(ranks, direction)
    plan = combine_in_parallel([gather.renamed(order, order) for order in orders])
    return PlannedAlgorithm(
        plan, _divide_among_ports(compute_ring_cost(ranks), len(orders)), {"rings": len(orders)}
    )


_MAX_RINGS = 16
"""With more rings, the data is divided into more parts than links can gain."""


def _divide_among_ports(cost: AlphaBetaCost, ports: int) -> AlphaBetaCost:
    """Return the cost with the term of the bytes divided by the number of links, `ports`.

    The number of message latencies is unchanged.
    """
    return AlphaBetaCost(cost.alphas, cost.betas * Fraction(1, ports))


def plan_torus_rings(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """Plan an all-gather on a grid of ranks: rings along one dimension after the other.

    The grid has the option `sizes`. For `auto` these are the dimensions of the topology if all NPUs
    are ranks, else the most square grid. Sizes of 1 are dropped. Dimension 0 varies fastest.

    The data are divided equally, one part per pair of start dimension f and ring direction. A part
    runs along f, f + 1 and so on, cyclically. With `ports=one` the only pair is (0, 1). Otherwise:

    - Start dimensions: all if all sizes are equal or `ports=all`, else only 0.
    - Directions: 1 and -1 if all sizes are above 2, else only 1. `direction` -1 reverses all rings.

    The cost is that of start dimension 0, its time per byte divided by the number of parts. Raises
    `UsageError` if `sizes` is no list such as `8x4` (`option-value`) or has another product than
    the number of ranks (`option-range`).
    """
    sizes = _choose_sizes(task, _find_dimensions(task))
    count = len(sizes)
    ports = cast("GridOptions", task.options).ports
    firsts, strides = 1, [1]
    if ports != "one":
        is_even = len(set(sizes)) == 1
        firsts = count if is_even or ports == "all" else 1
        # Between two ranks both directions use the same link.
        strides = [1, -1] if min(sizes) > 2 else [1]
    cost_of: list[AxisCost] = [compute_ring_cost] * count
    orders = [[(first + axis) % count for axis in range(count)] for first in range(firsts)]
    plans = []
    for order in orders:
        for stride in strides:
            plan_of: list[AxisPlan] = [
                partial(plan_ring_all_gather, stride=direction * stride)
            ] * count
            plans.append(plan_grid_all_gather(sizes, order, plan_of))
    cost = compute_grid_cost(sizes, orders[0], cost_of)
    shared = AlphaBetaCost(cost.alphas, cost.betas * Fraction(1, len(plans)))
    return PlannedAlgorithm(combine_in_parallel(plans), shared, _build_details(sizes))


def plan_hierarchical(task: ClassicTask, *, direction: int) -> PlannedAlgorithm:
    """Plan an all-gather by rings between groups, then directly among the ranks of each group.

    The first size is the number of ranks of a group, the next ones are those of the outer
    levels. Levels with rings are planned from the last size to the second one, then the
    direct exchange. With one size there are no rings. The first source of sizes that applies
    is used:

    1. the option `sizes`, unless it is `auto`;
    2. the equal groups of consecutive ranks in the topology, if there are at least two;
    3. the dimensions of the topology, or else the most square grid.

    Sizes of 1 are dropped; if all are 1, the only size is 1. The detail `sizes` is a text
    such as `8x4`. `direction`: 1, or -1 to reverse all rings. Raises `UsageError` for sizes
    that are no list (`option-value`) or with another product than the ranks (`option-range`).
    """
    groups = find_equal_groups(task.topology, task.npus)
    is_in_order = np.array_equal(groups.ravel(), np.arange(task.num_ranks))
    if len(groups) > 1 and is_in_order:
        sizes = _choose_sizes(task, [groups.shape[1], len(groups)])
    else:
        sizes = _choose_sizes(task, _find_dimensions(task))
    between = partial(plan_ring_all_gather, stride=direction)
    plan_of: list[AxisPlan] = [plan_direct_all_gather, *[between] * (len(sizes) - 1)]
    cost_of: list[AxisCost] = [compute_direct_share_cost, *[compute_ring_cost] * (len(sizes) - 1)]
    axes = list(reversed(range(len(sizes))))
    plan = plan_grid_all_gather(sizes, axes, plan_of)
    return PlannedAlgorithm(plan, compute_grid_cost(sizes, axes, cost_of), _build_details(sizes))


def _choose_sizes(task: ClassicTask, default_sizes: Sequence[int]) -> list[int]:
    """Return the sizes of the option `sizes`, or `default_sizes` if it is `auto`, without 1s.

    A text such as `8x1x4` gives [8, 4], in the order of the text. If all sizes are 1, the
    result is [1]. Raises `UsageError` (`option-value`) if the text is no list of numbers from 1
    to 2^20 - 1, separated by `x`. Raises `UsageError` (`option-range`) if the product is not
    the number of ranks, also for `default_sizes`.
    """
    option_text = cast("GridOptions", task.options).sizes
    sizes = list(default_sizes) if option_text == "auto" else _parse_sizes(option_text)
    product = 1
    for size in sizes:
        product *= size
    if product != task.num_ranks:
        raise UsageError(
            f"option sizes: {'x'.join(map(str, sizes))} is not {task.num_ranks} ranks",
            cure=f"name sizes whose product is the number of ranks, {task.num_ranks}",
            code="option-range",
        )
    return [size for size in sizes if size > 1] or [1]


def _parse_sizes(text: str) -> list[int]:
    """Parse a list of sizes such as `8x4` to [8, 4], in the order of the text.

    Raises `UsageError` (`option-value`) unless all parts between the letters `x` are
    numbers from 1 to 2^20 - 1 (`parse_whole`: digits only, without blanks).
    """
    # Text that is no number counts as 0.
    sizes = [parse_whole(part, (1 << 20) - 1) or 0 for part in text.split("x")]
    if not all(sizes):
        raise UsageError(
            f"option sizes: {text[:60]!r} is not a list of sizes",
            cure="write for example 8x4",
            code="option-value",
        )
    return sizes


def parse_groups(options: ClassicOptions, num_ranks: int) -> Int64Array | None:
    """Return the ranks of every group by the option `sizes`: int64[groups, ranks per group].

    The first size is the number of consecutive ranks in a group, such as those of a node;
    the product of the other sizes is the number of groups. None for `auto`, and for options
    without `sizes`. Raises `UsageError` (`option-value`) for an invalid list, or if the
    product of all sizes is not the number of ranks.
    """
    text = options.sizes if isinstance(options, GridOptions) else "auto"
    if text == "auto":
        return None
    sizes = _parse_sizes(text)
    if int(np.prod(sizes)) != num_ranks:
        raise UsageError(
            f"option sizes: {text[:60]} is not a division of {num_ranks} ranks",
            cure="give the ranks of a node and the number of nodes, as 8x8",
            code="option-value",
        )
    return np.arange(num_ranks).reshape(-1, sizes[0])


def _find_dimensions(task: ClassicTask) -> Sequence[int]:
    """Return the sizes of the topology's dimensions, also of 1, if all its NPUs are ranks.

    Otherwise, or without dimensions, return the most square grid of the ranks, the longer
    side first, such as [4, 3] for 12 and [7, 1] for 7.
    """
    sizes = [dimension.size for dimension in task.topology.dimensions]
    if sizes and task.num_ranks == task.topology.num_npus:
        return sizes
    side = max(
        side for side in range(1, int(task.num_ranks**0.5) + 1) if task.num_ranks % side == 0
    )
    return [task.num_ranks // side, side]


def _build_details(sizes: Sequence[int]) -> dict[str, int | str]:
    """Return the details for the statistics: `sizes` as text, such as `8x4`."""
    return {"sizes": "x".join(map(str, sizes))}
