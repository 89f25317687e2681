"""All-gathers and all-to-alls in logarithmic rounds for any number of ranks: Bruck and PAT.

Bruck et al., TPDS 1997. PAT, parallel aggregated trees, is NCCL's all-gather with few rounds and
bounded buffers: long distances come first, while messages are small. It is a binomial tree for A
blocks at once, then A trees at a time in depth-first order (NCCL 2.23; Jeaugey, 2025). With the
largest A, mirrored, it is SparBit (Loch and Koslovski, 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from collhub_classic.message_plan import MessagePlan, PlanBuilder
from collhub_classic.task import AlphaBetaCost, sum_rounds
from hub_core.columns import Int64Array


def plan_bruck_all_gather(num_ranks: int) -> MessagePlan:
    """Plan Bruck's all-gather: at distance d = 1, 2, 4, ... rank r sends blocks r, r + 1, ... to
    rank r - d.

    d blocks per message, in the last round only the missing ones.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    for distance in _list_distances(num_ranks):
        builder.next_round()
        # The last round completes the ring if the number of ranks is no power of two.
        count = min(distance, num_ranks - distance)
        builder.send_ranges(rank, (rank - distance) % num_ranks, rank, count)
    return builder.build()


def compute_bruck_all_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha ceil(log2 n) + m beta (n - 1) / n."""
    rounds = (num_ranks - 1).bit_length()
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def plan_bruck_all_to_all(num_ranks: int) -> MessagePlan:
    """Plan Bruck's all-to-all: at distance d = 1, 2, 4, ... blocks whose offset has bit d move d
    ranks on.

    The offset of a block from rank s to rank s + i is i; its bits are processed from the lowest on.
    """
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    rank = np.arange(num_ranks)
    for distance in _list_distances(num_ranks):
        offsets = _find_offsets_with(distance, num_ranks)
        source = (rank[:, None] - offsets % distance) % num_ranks
        builder.next_round()
        builder.send(
            rank,
            (rank + distance) % num_ranks,
            source * num_ranks + (source + offsets) % num_ranks,
        )
    return builder.build()


def compute_bruck_all_to_all_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost of Bruck's all-to-all.

    In the round of a bit, a rank sends the blocks whose offset has that bit: about half of its
    data.
    """
    return sum_rounds(
        *(
            Fraction(len(_find_offsets_with(distance, num_ranks)), num_ranks)
            for distance in _list_distances(num_ranks)
        )
    )


def _find_offsets_with(bit: int, num_ranks: int) -> Int64Array:
    """Find the offsets below the number of ranks that have a bit."""
    offsets = np.arange(num_ranks)
    return offsets[(offsets & bit) > 0]


def _list_distances(num_ranks: int) -> list[int]:
    """List 1, 2, 4, ... below the number of ranks."""
    return [1 << bit for bit in range((num_ranks - 1).bit_length())]


def plan_pat_all_gather(num_ranks: int, aggregation: int) -> MessagePlan:
    """Plan PAT's all-gather for any number of ranks.

    `aggregation`: maximum number of blocks that are sent at once, a power of two.
    """
    power = 1 << (num_ranks - 1).bit_length()
    depth = power // aggregation
    builder = PlanBuilder(num_ranks, num_ranks)
    distance = power // 2
    while distance >= depth:
        _send_round(builder, num_ranks, distance, range(0, num_ranks - distance, 2 * distance))
        distance //= 2
    for node in _generate_preorder(depth):
        if node < num_ranks:
            distance = node & -node
            blocks = range(node - distance, num_ranks - distance, depth)
            _send_round(builder, num_ranks, distance, blocks)
    return builder.build()


def compute_pat_cost(num_ranks: int, aggregation: int) -> AlphaBetaCost:
    """Compute the cost (log2 A + D - 1) alpha + m beta (n - 1) / n of PAT with aggregation A.

    D = P / A with P the power of two >= n, but at most n: trees of ranks that do not exist take no
    rounds.
    """
    power = 1 << (num_ranks - 1).bit_length()
    rounds = aggregation.bit_length() - 1 + min(power // aggregation, num_ranks) - 1
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def find_largest_aggregation(num_ranks: int) -> int:
    """Compute the largest useful aggregation: half of the smallest power of two >= n, at
    least 1.
    """
    return max(1, (1 << (num_ranks - 1).bit_length()) // 2)


def plan_sparbit_all_gather(num_ranks: int) -> MessagePlan:
    """Plan SparBit's all-gather: PAT with the largest aggregation and all directions reversed."""
    mirrored = -np.arange(num_ranks) % num_ranks
    return plan_pat_all_gather(num_ranks, find_largest_aggregation(num_ranks)).renamed(
        mirrored, mirrored
    )


def _send_round(builder: PlanBuilder, num_ranks: int, distance: int, blocks: range) -> None:
    """Add a round: rank r sends the blocks at offsets after its own to rank r - distance."""
    rank = np.arange(num_ranks)
    builder.next_round()
    builder.send(rank, (rank - distance) % num_ranks, rank[:, None] + np.asarray(blocks))


def _generate_preorder(depth: int) -> Iterator[int]:
    """Yield the nodes 1..depth - 1 of the binomial tree below 0, depth first, the largest child
    first.
    """

    def generate_below(node: int, span: int) -> Iterator[int]:
        """Yield the nodes below `node` in its subtree of `span` nodes, in the same order."""
        while span > 1:
            span //= 2
            yield node + span
            yield from generate_below(node + span, span)

    return generate_below(0, depth)
