"""Without relays: every rank sends to every other one itself, all at once or in turn."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def direct_all_gather(num_ranks: int) -> MessagePlan:
    """One round: every rank sends its block to all others."""
    source, destination = _pairs(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks)
    builder.next_round()
    builder.send(source, destination, source)
    return builder.build()


def direct_all_to_all(num_ranks: int) -> MessagePlan:
    """One round: every rank sends every other one its block."""
    source, destination = _pairs(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    # A network that is not full orders them by itself.
    builder.next_round()
    builder.send(source, destination, source * num_ranks + destination)
    return builder.build()


def direct_broadcast(num_ranks: int) -> MessagePlan:
    """One round: rank 0 sends the vector to all others."""
    others = np.arange(1, num_ranks)
    builder = PlanBuilder(num_ranks, 1)
    builder.next_round()
    builder.send(np.zeros_like(others), others, np.zeros_like(others))
    return builder.build()


def direct_scatter(num_ranks: int) -> MessagePlan:
    """One round: rank 0 sends every other one its share."""
    others = np.arange(1, num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks)
    builder.next_round()
    builder.send(np.zeros_like(others), others, others)
    return builder.build()


def pairwise_all_to_all(num_ranks: int) -> MessagePlan:
    """Round k: rank r sends to rank r + k, and hears from rank r - k."""
    rank = np.arange(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    for k in range(1, num_ranks):
        target = (rank + k) % num_ranks
        builder.next_round()
        builder.send(rank, target, rank * num_ranks + target)
    return builder.build()


def direct_share_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha + m beta (n - 1) / n: a share to, or from, every other rank."""
    return AlphaBetaCost(1, Fraction(num_ranks - 1, num_ranks))


def direct_vector_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha + (n - 1) m beta: the whole vector to, or from, every other rank."""
    return AlphaBetaCost(1, Fraction(num_ranks - 1))


def direct_reduce_cost() -> AlphaBetaCost:
    """alpha + m beta: all send at once, each by its own port."""
    return AlphaBetaCost(1, Fraction(1))


def direct_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha + m beta / n."""
    return AlphaBetaCost(1, Fraction(1, num_ranks))


def pairwise_cost(num_ranks: int) -> AlphaBetaCost:
    """(n - 1) alpha + m beta (n - 1) / n."""
    return AlphaBetaCost(num_ranks - 1, Fraction(num_ranks - 1, num_ranks))


def _pairs(num_ranks: int) -> tuple[Int64Array, Int64Array]:
    """All (source, destination); every rank begins with the one behind it."""
    rank = np.repeat(np.arange(num_ranks), num_ranks - 1)
    step = np.tile(np.arange(1, num_ranks), num_ranks)
    return rank, (rank + step) % num_ranks
