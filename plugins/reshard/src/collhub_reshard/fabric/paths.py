"""Cheapest ways between places, over other places where that is cheaper, and trees of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_reshard.fabric.links import Edge
from hub_core.columns import Float64Array, Int64Array


def closure(costs: Float64Array) -> tuple[Float64Array, Int64Array]:
    """(cost, place before the last) of the cheapest way between all places (Floyd 1962)."""
    count = len(costs)
    best = costs.copy()
    before = np.repeat(np.arange(count)[:, None], count, axis=1)
    for middle in range(count):
        over = best[:, middle, None] + best[None, middle, :]
        is_better = over < best
        best = np.where(is_better, over, best)
        before = np.where(is_better, before[None, middle, :], before)
    return best, before


def cheap_tree(
    best: Float64Array,
    before: Int64Array,
    senders: Sequence[int],
    receivers: Sequence[int],
) -> tuple[Edge, ...]:
    """Edges from senders to all receivers, parents first: the nearest receiver joins first.

    The shortest-path heuristic of Takahashi and Matsuyama (1980); with one receiver it is exact.
    """
    reached = list(senders)
    waiting = list(receivers)
    edges: list[Edge] = []
    while waiting:
        costs = best[np.ix_(reached, waiting)]
        start, end = np.unravel_index(int(costs.argmin()), costs.shape)
        goal = waiting[int(end)]
        way: list[Edge] = []
        # A place on the way may be in the tree already, over another one of its nodes.
        while goal not in reached:
            parent = int(before[reached[int(start)], goal])
            way.append((parent, goal))
            goal = parent
        edges += reversed(way)
        reached += [child for _, child in reversed(way)]
        waiting = [one for one in waiting if one not in reached]
    return tuple(edges)
