"""Binomial and k-nomial trees from rank 0, and NCCL's double binary tree.

In the double binary tree (Sanders, Speck and Traff; shape of NCCL's `ncclGetDtree`) hardly any rank
has children in both trees; half of the data is sent up and down either tree, in chunks.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.message_plan import MessagePlan, PlanBuilder, combine_in_parallel
from collhub_classic.task import AlphaBetaCost, sum_rounds
from hub_core.columns import Int64Array
from hub_core.schedules import NO_RANK, find_second_tree_parents, find_tree_parents


def plan_knomial_broadcast(num_ranks: int, radix: int) -> MessagePlan:
    """Plan a broadcast from rank 0 on a k-nomial tree.

    In each round, each informed rank sends the vector to radix - 1 new ranks.
    """
    builder = PlanBuilder(num_ranks, 1)
    for informed in _list_informed_counts(num_ranks, radix):
        builder.next_round()
        for step in range(1, radix):
            rank = np.arange(min(informed, max(0, num_ranks - step * informed)))
            builder.send(rank, rank + step * informed, np.zeros_like(rank))
    return builder.build()


def compute_knomial_cost(num_ranks: int, radix: int) -> AlphaBetaCost:
    """Compute the cost of a k-nomial broadcast: one round per power of the radix below n.

    The root sends radix - 1 times per round, in the last round only as often as ranks are left.
    """
    times = [
        min(radix - 1, (num_ranks - 1) // informed)
        for informed in _list_informed_counts(num_ranks, radix)
    ]
    return sum_rounds(*times)


def compute_knomial_reduce_cost(num_ranks: int, radix: int) -> AlphaBetaCost:
    """Compute the cost d (alpha + m beta) of a k-nomial reduce, with d the depth of the tree.

    The first rank at depth d is the one whose d digits to the radix are 1.
    """
    depth, first = 0, 0
    while first * radix + 1 < num_ranks:
        depth, first = depth + 1, first * radix + 1
    return sum_rounds(*[1] * depth)


def plan_binomial_scatter(num_ranks: int) -> MessagePlan:
    """Plan a scatter from rank 0 on a binomial tree.

    Each rank sends the shares of the upper half of its subtree. The largest subtrees come first.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    for bit in reversed(range((num_ranks - 1).bit_length())):
        distance = 1 << bit
        rank = np.arange(0, num_ranks - distance, 2 * distance)
        count = np.minimum(distance, num_ranks - rank - distance)
        builder.next_round()
        builder.send_ranges(rank, rank + distance, rank + distance, count)
    return builder.build()


def compute_binomial_scatter_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha ceil(log2 n) + m beta (n - 1) / n of a binomial scatter."""
    rounds = (num_ranks - 1).bit_length()
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def compute_binomial_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost of a binomial gather: alpha floor(log2 n), plus the shares on the slowest
    path.
    """
    return AlphaBetaCost(
        num_ranks.bit_length() - 1, Fraction(_count_shares_on_slowest_path(num_ranks), num_ranks)
    )


def _count_shares_on_slowest_path(num_ranks: int) -> int:
    """Count the shares on the slowest path to the root of a number of ranks.

    It leads through the largest complete subtree, or through the incomplete one.
    """
    if num_ranks < 2:
        return 0
    complete = 1 << ((num_ranks - 1).bit_length() - 1)
    remaining = num_ranks - complete
    return max(complete - 1, remaining + _count_shares_on_slowest_path(remaining))


def _list_informed_counts(num_ranks: int, radix: int) -> list[int]:
    """List the number of ranks that have the vector before each round."""
    counts = []
    informed = 1
    while informed < num_ranks:
        counts.append(informed)
        informed *= radix
    return counts


def plan_double_tree_all_reduce(num_ranks: int, chunks: int) -> MessagePlan:
    """Plan an all-reduce up and then down both trees, with `chunks` chunks on each tree."""
    return combine_in_parallel(
        [
            _plan_reduce_and_broadcast(parent, chunks)
            for parent in (find_tree_parents(num_ranks), find_second_tree_parents(num_ranks))
        ]
    )


def compute_double_tree_cost(num_ranks: int, chunks: int) -> AlphaBetaCost:
    """Compute the cost 2 D alpha + (2 D + c - 1) m beta / 2 c, with D the depth of the deeper tree.

    c: chunks per tree. Exact as long as the trees do not send over the same link at once.
    """
    parents = find_tree_parents(num_ranks), find_second_tree_parents(num_ranks)
    depth = max(int(_compute_depths(parent).max()) for parent in parents)
    return AlphaBetaCost(2 * depth, Fraction(2 * depth + chunks - 1, 2 * chunks))


def _plan_reduce_and_broadcast(parent: Int64Array, chunks: int) -> MessagePlan:
    """Plan a reduce to the root of a tree and a broadcast from it.

    A rank of depth d sends chunk k to its parent in round k + D - d, where D is the depth of the
    tree; a parent sends it to children of depth d in round k + D + d - 1, when it is complete.
    """
    depth = _compute_depths(parent)
    last = int(depth.max())
    child = np.flatnonzero(parent >= 0)
    builder = PlanBuilder(len(parent), chunks)
    for round_ in range(2 * last + chunks - 1):
        builder.next_round()
        # Going up, a rank of depth d sends chunk k in round k + last - d.
        chunk = round_ - (last - depth[child])
        up = (chunk >= 0) & (chunk < chunks)
        builder.send(child[up], parent[child[up]], chunk[up], reduces=True)
        chunk = round_ - (last + depth[child] - 1)
        down = (chunk >= 0) & (chunk < chunks)
        builder.send(parent[child[down]], child[down], chunk[down])
    return builder.build()


def _compute_depths(parent: Int64Array) -> Int64Array:
    """Return the number of links from the root to every rank; int64[ranks].

    The parent of a root is negative, and its depth is 0. `parent` must have no cycle.
    """
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[np.maximum(above, 0)], NO_RANK)
    return depth
