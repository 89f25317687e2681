"""Bruck's algorithms: logarithmic rounds for any number of ranks (Bruck et al., TPDS 1997)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.costs import AlphaBetaCost, rounds_of
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def bruck_all_gather(num_ranks: int) -> MessagePlan:
    """Distance d = 1, 2, 4, ...: rank r sends the blocks from its own on to rank r - d."""
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    for distance in _distances(num_ranks):
        builder.next_round()
        # The last round of a number that is no power of two completes the ring.
        count = min(distance, num_ranks - distance)
        builder.send_ranges(rank, (rank - distance) % num_ranks, rank, count)
    return builder.build()


def bruck_all_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha ceil(log2 n) + m beta (n - 1) / n."""
    rounds = (num_ranks - 1).bit_length()
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def bruck_all_to_all(num_ranks: int) -> MessagePlan:
    """Distance d = 1, 2, 4, ...: what still has to go on by an odd multiple of d goes on by d.

    A block for rank s + i of rank s travels by the bits of i, the lowest first.
    """
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    rank = np.arange(num_ranks)
    for distance in _distances(num_ranks):
        ways = _ways_with(distance, num_ranks)
        source = (rank[:, None] - ways % distance) % num_ranks
        builder.next_round()
        builder.send(
            rank,
            (rank + distance) % num_ranks,
            source * num_ranks + (source + ways) % num_ranks,
        )
    return builder.build()


def bruck_all_to_all_cost(num_ranks: int) -> AlphaBetaCost:
    """In every round about half of the data: the distances that have the bit of the round."""
    return rounds_of(
        *(
            Fraction(len(_ways_with(distance, num_ranks)), num_ranks)
            for distance in _distances(num_ranks)
        )
    )


def _ways_with(bit: int, num_ranks: int) -> Int64Array:
    """The distances below the number of ranks that have a bit."""
    ways = np.arange(num_ranks)
    return ways[(ways & bit) > 0]


def _distances(num_ranks: int) -> list[int]:
    """1, 2, 4, ... below the number of ranks."""
    return [1 << bit for bit in range((num_ranks - 1).bit_length())]
