"""Rings, chains and neighbour exchange: every rank exchanges messages with its neighbours only.

Reduce-scatter and all-gather rings as in Patarasuk and Yuan, JPDC 2009; a broadcast is a chain that
sends chunks one after another; neighbour exchange is an all-gather of pairs of blocks (Chen et al.,
2005).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def plan_ring_all_gather(num_ranks: int, stride: int = 1) -> MessagePlan:
    """Plan a ring all-gather: in round k rank r sends block r - k * stride to rank r + stride.

    Reversed, it is a reduce-scatter whose messages are sent from rank r to rank r - stride.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    for k in range(num_ranks - 1):
        builder.next_round()
        builder.send(rank, (rank + stride) % num_ranks, rank - k * stride)
    return builder.build()


def compute_ring_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost of a reduce-scatter or an all-gather: (n - 1) (alpha + m beta / n)."""
    return AlphaBetaCost(num_ranks - 1, Fraction(num_ranks - 1, num_ranks))


def plan_chain_broadcast(num_ranks: int, chunks: int) -> MessagePlan:
    """Plan a broadcast along a chain: in round k rank r sends chunk k - r to rank r + 1.

    Rank 0 is the root.
    """
    builder = PlanBuilder(num_ranks, chunks)
    for k in range(num_ranks - 2 + chunks):
        rank = np.arange(max(0, k - chunks + 1), min(k, num_ranks - 2) + 1)
        builder.next_round()
        builder.send(rank, rank + 1, k - rank)
    return builder.build()


def compute_chain_cost(num_ranks: int, chunks: int) -> AlphaBetaCost:
    """Compute the cost (n - 2 + c) (alpha + m beta / c) of a chain with c chunks."""
    rounds = num_ranks - 2 + chunks
    return AlphaBetaCost(rounds, Fraction(rounds, chunks))


def plan_neighbour_all_gather(num_ranks: int) -> MessagePlan:
    """Plan an all-gather by neighbour exchange among an even number of ranks.

    The partners are alternately the left and the right neighbour. A rank first sends its block,
    then its pair of blocks, then the pair that it received last.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    builder.next_round()
    builder.send(rank, rank ^ 1, rank)
    pair = rank // 2
    # In odd rounds even ranks exchange with the previous rank, odd ranks with the next one.
    outward = (rank + np.where(rank % 2 == 0, -1, 1)) % num_ranks
    for k in range(1, num_ranks // 2):
        partner = outward if k % 2 else rank ^ 1
        builder.next_round()
        builder.send(rank, partner, np.stack([2 * pair, 2 * pair + 1], axis=1))
        # The pair received from the partner is sent next.
        pair = pair[partner]
    return builder.build()


def compute_neighbour_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha n / 2 + m beta (n - 1) / n of neighbour exchange."""
    return AlphaBetaCost(num_ranks // 2, Fraction(num_ranks - 1, num_ranks))
