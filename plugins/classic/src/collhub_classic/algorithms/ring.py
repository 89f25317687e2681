"""Rings: every rank hears from the one before and tells the one behind.

Reduce-scatter and all-gather as in Patarasuk and Yuan, JPDC 2009; a broadcast is a chain whose
chunks follow each other.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def ring_all_gather(num_ranks: int, stride: int = 1) -> MessagePlan:
    """Round k: rank r passes block r - k * stride on to rank r + stride.

    Reversed, it is a reduce-scatter whose messages go from rank r to rank r - stride.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    for k in range(num_ranks - 1):
        builder.next_round()
        builder.send(rank, (rank + stride) % num_ranks, rank - k * stride)
    return builder.build()


def ring_cost(num_ranks: int) -> AlphaBetaCost:
    """Of a reduce-scatter or an all-gather: (n - 1) (alpha + m beta / n)."""
    return AlphaBetaCost(num_ranks - 1, Fraction(num_ranks - 1, num_ranks))


def chain_broadcast(num_ranks: int, chunks: int) -> MessagePlan:
    """Round k: rank r passes chunk k - r on to rank r + 1; rank 0 is the root."""
    builder = PlanBuilder(num_ranks, chunks)
    for k in range(num_ranks - 2 + chunks):
        rank = np.arange(max(0, k - chunks + 1), min(k, num_ranks - 2) + 1)
        builder.next_round()
        builder.send(rank, rank + 1, k - rank)
    return builder.build()


def chain_cost(num_ranks: int, chunks: int) -> AlphaBetaCost:
    """(n - 2 + c) (alpha + m beta / c)."""
    rounds = num_ranks - 2 + chunks
    return AlphaBetaCost(rounds, Fraction(rounds, chunks))
