"""Neighbour exchange: an all-gather of pairs of blocks between neighbours (Chen et al., 2005)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def neighbour_all_gather(num_ranks: int) -> MessagePlan:
    """For an even number of ranks: partners are the left and the right neighbour in turn.

    First own blocks, then own pairs, then the pair that was received last.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    builder.next_round()
    builder.send(rank, rank ^ 1, rank)
    pair = rank // 2
    # Even ranks exchange with the one before in odd rounds, odd ranks with the one behind.
    outward = (rank + np.where(rank % 2 == 0, -1, 1)) % num_ranks
    for k in range(1, num_ranks // 2):
        partner = outward if k % 2 else rank ^ 1
        builder.next_round()
        builder.send(rank, partner, np.stack([2 * pair, 2 * pair + 1], axis=1))
        # What the partner sent is what this rank passes on next.
        pair = pair[partner]
    return builder.build()


def neighbour_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha n / 2 + m beta (n - 1) / n."""
    return AlphaBetaCost(num_ranks // 2, Fraction(num_ranks - 1, num_ranks))
