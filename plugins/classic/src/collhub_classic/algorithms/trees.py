"""Binomial and k-nomial trees from rank 0, for whole vectors and for a share of every rank."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost, rounds_of
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def knomial_broadcast(num_ranks: int, radix: int) -> MessagePlan:
    """Every rank that has the vector sends it to radix - 1 others, round by round."""
    builder = PlanBuilder(num_ranks, 1)
    for have in _reached(num_ranks, radix):
        builder.next_round()
        for step in range(1, radix):
            rank = np.arange(min(have, max(0, num_ranks - step * have)))
            builder.send(rank, rank + step * have, np.zeros_like(rank))
    return builder.build()


def knomial_cost(num_ranks: int, radix: int) -> AlphaBetaCost:
    """A round for every power of the radix below n; the root sends radix - 1 times in each.

    In the last round only as often as there are ranks left.
    """
    times = [min(radix - 1, (num_ranks - 1) // have) for have in _reached(num_ranks, radix)]
    return rounds_of(*times)


def knomial_reduce_cost(num_ranks: int, radix: int) -> AlphaBetaCost:
    """d (alpha + m beta), d being the depth of the tree: every rank sends once.

    The first rank at depth d is that whose d digits to the radix are 1.
    """
    depth, first = 0, 0
    while first * radix + 1 < num_ranks:
        depth, first = depth + 1, first * radix + 1
    return rounds_of(*[1] * depth)


def binomial_scatter(num_ranks: int) -> MessagePlan:
    """The largest subtree first: a rank sends the shares of the upper half of what it has."""
    builder = PlanBuilder(num_ranks, num_ranks)
    for bit in reversed(range((num_ranks - 1).bit_length())):
        distance = 1 << bit
        rank = np.arange(0, num_ranks - distance, 2 * distance)
        count = np.minimum(distance, num_ranks - rank - distance)
        builder.next_round()
        builder.send_ranges(rank, rank + distance, rank + distance, count)
    return builder.build()


def binomial_scatter_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha ceil(log2 n) + m beta (n - 1) / n."""
    rounds = (num_ranks - 1).bit_length()
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def binomial_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha floor(log2 n), and the shares that pass over the slowest way to the root."""
    return AlphaBetaCost(num_ranks.bit_length() - 1, Fraction(_passed(num_ranks), num_ranks))


def _passed(num_ranks: int) -> int:
    """Shares on the slowest way to the root of so many ranks.

    It comes through the largest whole subtree, or through the larger, incomplete one.
    """
    if num_ranks < 2:
        return 0
    whole = 1 << ((num_ranks - 1).bit_length() - 1)
    rest = num_ranks - whole
    return max(whole - 1, rest + _passed(rest))


def _reached(num_ranks: int, radix: int) -> list[int]:
    """Ranks that have the vector before each round."""
    found = []
    have = 1
    while have < num_ranks:
        found.append(have)
        have *= radix
    return found
