"""One dimension after another: all-gathers along the axes of a grid of ranks.

Rings along the axes make the algorithms of tori, exchanges of all pairs within a node and rings
between nodes the hierarchical ones. Read backwards, they are reduce-scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder

AxisPlan = Callable[[int], MessagePlan]
AxisCost = Callable[[int], AlphaBetaCost]


def grid_all_gather(
    sizes: Sequence[int], axes: Sequence[int], plan_of: Sequence[AxisPlan]
) -> MessagePlan:
    """Gather along `axes` in this order; `plan_of[axis]` gathers among the ranks of a line.

    Rank r has the coordinates of r in the mixed radix of `sizes`, the first axis fastest. What a
    rank sends along an axis is the block of the line's plan with all that was gathered before.
    """
    ranks = int(np.prod(sizes))
    coordinate = np.stack(np.unravel_index(np.arange(ranks), tuple(sizes), order="F"))
    gathered = PlanBuilder(ranks, ranks).build()
    # The blocks that stand for each rank's own: its lines of the axes that are done.
    held = np.arange(ranks)[:, None]
    for axis in axes:
        line = plan_of[axis](sizes[axis])
        gathered = gathered.then(_along(line, axis, sizes, coordinate, held))
        held = held[_line_of(axis, sizes, coordinate)].reshape(ranks, -1)
    return gathered


def grid_cost(
    sizes: Sequence[int], axes: Sequence[int], cost_of: Sequence[AxisCost]
) -> AlphaBetaCost:
    """The costs along the axes; the data of an axis is a part of all, by the axes behind it."""
    total = AlphaBetaCost(0, Fraction(0))
    part = Fraction(1)
    # Backwards, as the last axis carries all that the others gathered.
    for axis in reversed(axes):
        cost = cost_of[axis](sizes[axis])
        total += AlphaBetaCost(cost.alphas, cost.betas * part)
        part /= sizes[axis]
    return total


def _along(
    line: MessagePlan,
    axis: int,
    sizes: Sequence[int],
    coordinate: Int64Array,
    held: Int64Array,
) -> MessagePlan:
    """The plan of one line, carried out on all lines of an axis at once."""
    ranks, width = held.shape
    rank_at = _line_of(axis, sizes, coordinate)
    heads = np.flatnonzero(coordinate[axis] == 0)
    builder = PlanBuilder(ranks, ranks)
    for round_ in range(line.num_rounds):
        builder.next_round()
        for message in np.flatnonzero(line.round == round_).tolist():
            blocks = line.blocks[line.indptr[message] : line.indptr[message + 1]]
            owners = rank_at[heads][:, blocks]
            builder.send(
                rank_at[heads, line.source[message]],
                rank_at[heads, line.destination[message]],
                held[owners].reshape(len(heads), len(blocks) * width),
            )
    return builder.build()


def _line_of(axis: int, sizes: Sequence[int], coordinate: Int64Array) -> Int64Array:
    """Per rank, the ranks of its line along an axis: int64[ranks, size of the axis]."""
    stride = int(np.prod(sizes[:axis]))
    first = np.arange(coordinate.shape[1]) - coordinate[axis] * stride
    ranks: Int64Array = first[:, None] + stride * np.arange(sizes[axis])
    return ranks
