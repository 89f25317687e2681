"""All-gathers along the axes of a grid of ranks, one axis after another.

Rings along the axes give the algorithms of tori; exchanges of all pairs within a node and rings
between nodes give the hierarchical ones. Reversed, they are reduce-scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder
from hub_core.columns import Int64Array

AxisPlan = Callable[[int], MessagePlan]
AxisCost = Callable[[int], AlphaBetaCost]


def plan_grid_all_gather(
    sizes: Sequence[int], axes: Sequence[int], plan_of: Sequence[AxisPlan]
) -> MessagePlan:
    """Plan to gather along `axes` in this order; `plan_of[axis]` gathers among the ranks of a line.

    Rank r has the coordinates of r in the mixed radix of `sizes`, the first axis fastest. In place
    of one block of the line's plan, a rank sends all blocks gathered before.
    """
    ranks = int(np.prod(sizes))
    coordinate = np.stack(np.unravel_index(np.arange(ranks), tuple(sizes), order="F"))
    gathered = PlanBuilder(ranks, ranks).build()
    # The blocks of each rank so far: those of its lines along the previous axes.
    gathered_blocks = np.arange(ranks)[:, None]
    for axis in axes:
        line = plan_of[axis](sizes[axis])
        gathered = gathered.then(_plan_along_axis(line, axis, sizes, coordinate, gathered_blocks))
        gathered_blocks = gathered_blocks[_find_lines(axis, sizes, coordinate)].reshape(ranks, -1)
    return gathered


def compute_grid_cost(
    sizes: Sequence[int], axes: Sequence[int], cost_of: Sequence[AxisCost]
) -> AlphaBetaCost:
    """Sum the costs along the axes.

    The data of an axis is divided by the sizes of the axes after it.
    """
    total = AlphaBetaCost(0, Fraction(0))
    fraction = Fraction(1)
    # Backwards: the last axis carries all data.
    for axis in reversed(axes):
        cost = cost_of[axis](sizes[axis])
        total += AlphaBetaCost(cost.alphas, cost.betas * fraction)
        fraction /= sizes[axis]
    return total


def _plan_along_axis(
    line: MessagePlan,
    axis: int,
    sizes: Sequence[int],
    coordinate: Int64Array,
    gathered_blocks: Int64Array,
) -> MessagePlan:
    """Apply the plan of one line to all lines of an axis at once."""
    ranks, width = gathered_blocks.shape
    rank_at = _find_lines(axis, sizes, coordinate)
    first_ranks = np.flatnonzero(coordinate[axis] == 0)
    builder = PlanBuilder(ranks, ranks)
    for round_ in range(line.num_rounds):
        builder.next_round()
        for message in np.flatnonzero(line.round == round_).tolist():
            blocks = line.blocks[line.indptr[message] : line.indptr[message + 1]]
            owners = rank_at[first_ranks][:, blocks]
            builder.send(
                rank_at[first_ranks, line.source[message]],
                rank_at[first_ranks, line.destination[message]],
                gathered_blocks[owners].reshape(len(first_ranks), len(blocks) * width),
            )
    return builder.build()


def _find_lines(axis: int, sizes: Sequence[int], coordinate: Int64Array) -> Int64Array:
    """Find for every rank the ranks of its line along an axis: int64[ranks, size of the axis]."""
    stride = int(np.prod(sizes[:axis]))
    first = np.arange(coordinate.shape[1]) - coordinate[axis] * stride
    ranks: Int64Array = first[:, None] + stride * np.arange(sizes[axis])
    return ranks
