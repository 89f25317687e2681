"""PAT, parallel aggregated trees: NCCL's all-gather with few rounds and bounded buffers.

Far distances come first, while messages are small: a binomial tree for A blocks at once, then A
trees at a time in depth-first order (NCCL 2.23; Jeaugey, 2025). With A as large as can be,
mirrored, it is SparBit (Loch and Koslovski, 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def pat_all_gather(num_ranks: int, aggregation: int) -> MessagePlan:
    """Of any number of ranks; `aggregation`: blocks that travel at once, a power of two."""
    power = 1 << (num_ranks - 1).bit_length()
    depth = power // aggregation
    builder = PlanBuilder(num_ranks, num_ranks)
    distance = power // 2
    while distance >= depth:
        _send(builder, num_ranks, distance, range(0, num_ranks - distance, 2 * distance))
        distance //= 2
    for node in _preorder(depth):
        if node < num_ranks:
            distance = node & -node
            blocks = range(node - distance, num_ranks - distance, depth)
            _send(builder, num_ranks, distance, blocks)
    return builder.build()


def pat_cost(num_ranks: int, aggregation: int) -> AlphaBetaCost:
    """(log2 A + D - 1) alpha + m beta (n - 1) / n, D = P / A, P the power of two from n on.

    Trees of ranks that are not there take no rounds.
    """
    power = 1 << (num_ranks - 1).bit_length()
    rounds = aggregation.bit_length() - 1 + min(power // aggregation, num_ranks) - 1
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def largest_aggregation(num_ranks: int) -> int:
    """Half of the power of two from n on: as few rounds as can be."""
    return max(1, (1 << (num_ranks - 1).bit_length()) // 2)


def sparbit_all_gather(num_ranks: int) -> MessagePlan:
    """PAT of the largest aggregation with all directions turned."""
    mirrored = -np.arange(num_ranks) % num_ranks
    return pat_all_gather(num_ranks, largest_aggregation(num_ranks)).renamed(mirrored, mirrored)


def _send(builder: PlanBuilder, num_ranks: int, distance: int, blocks: range) -> None:
    """A round: rank r sends the blocks that lie so far behind its own to rank r - distance."""
    rank = np.arange(num_ranks)
    builder.next_round()
    builder.send(rank, (rank - distance) % num_ranks, rank[:, None] + np.asarray(blocks))


def _preorder(depth: int) -> Iterator[int]:
    """Nodes 1..depth - 1 of the binomial tree below 0, depth first, the largest child first."""

    def below(node: int, span: int) -> Iterator[int]:
        """The nodes below `node` in its subtree of `span` nodes, in the same order."""
        while span > 1:
            span //= 2
            yield node + span
            yield from below(node + span, span)

    return below(0, depth)
