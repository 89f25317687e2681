"""Algorithms without relays: every rank sends to every other rank itself, all at once or in
turn.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder
from hub_core.columns import Int64Array


def plan_direct_all_gather(num_ranks: int) -> MessagePlan:
    """Plan an all-gather in one round: every rank sends its block to all other ranks."""
    source, destination = _list_pairs(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks)
    builder.next_round()
    builder.send(source, destination, source)
    return builder.build()


def plan_direct_all_to_all(num_ranks: int) -> MessagePlan:
    """Plan an all-to-all in one round: every rank sends every other rank its block."""
    source, destination = _list_pairs(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    # If ranks share links, the network orders the messages itself.
    builder.next_round()
    builder.send(source, destination, source * num_ranks + destination)
    return builder.build()


def plan_direct_broadcast(num_ranks: int) -> MessagePlan:
    """Plan a broadcast in one round: rank 0 sends the vector to all other ranks."""
    receivers = np.arange(1, num_ranks)
    builder = PlanBuilder(num_ranks, 1)
    builder.next_round()
    builder.send(np.zeros_like(receivers), receivers, np.zeros_like(receivers))
    return builder.build()


def plan_direct_scatter(num_ranks: int) -> MessagePlan:
    """Plan a scatter in one round: rank 0 sends every other rank its share."""
    receivers = np.arange(1, num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks)
    builder.next_round()
    builder.send(np.zeros_like(receivers), receivers, receivers)
    return builder.build()


def plan_pairwise_all_to_all(num_ranks: int) -> MessagePlan:
    """Plan an all-to-all in n - 1 rounds: in round k rank r sends to rank r + k its block."""
    rank = np.arange(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    for k in range(1, num_ranks):
        target = (rank + k) % num_ranks
        builder.next_round()
        builder.send(rank, target, rank * num_ranks + target)
    return builder.build()


def compute_direct_share_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha + m beta (n - 1) / n: a share to, or from, every other rank."""
    return AlphaBetaCost(1, Fraction(num_ranks - 1, num_ranks))


def compute_direct_vector_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha + (n - 1) m beta: the full vector to every other rank."""
    return AlphaBetaCost(1, Fraction(num_ranks - 1))


def compute_direct_reduce_cost() -> AlphaBetaCost:
    """Compute the cost alpha + m beta: all ranks send at once, each through its own port."""
    return AlphaBetaCost(1, Fraction(1))


def compute_direct_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha + m beta / n: all ranks send their share at once."""
    return AlphaBetaCost(1, Fraction(1, num_ranks))


def compute_pairwise_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost (n - 1) alpha + m beta (n - 1) / n of the pairwise all-to-all."""
    return AlphaBetaCost(num_ranks - 1, Fraction(num_ranks - 1, num_ranks))


def _list_pairs(num_ranks: int) -> tuple[Int64Array, Int64Array]:
    """List all (source, destination) pairs; every rank begins with the next one."""
    rank = np.repeat(np.arange(num_ranks), num_ranks - 1)
    step = np.tile(np.arange(1, num_ranks), num_ranks)
    return rank, (rank + step) % num_ranks
