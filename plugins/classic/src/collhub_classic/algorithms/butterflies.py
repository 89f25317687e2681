"""Butterflies: in every round each rank exchanges with one that differs in one bit of its number.

Recursive doubling, and recursive halving and doubling (Rabenseifner; Thakur, Rabenseifner and
Gropp, IJHPCA 2005), for any number of ranks by folding.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from collhub_classic.algorithms.folding import (
    Fold,
    fold_cost,
    folded_all_gather,
    folded_all_reduce,
)
from collhub_classic.costs import AlphaBetaCost, rounds_of
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def doubling_all_gather(num_ranks: int) -> MessagePlan:
    """Distances 1, 2, 4, ...: each rank sends all that it has."""
    fold = Fold(num_ranks)
    return folded_all_gather(fold, _all_gather(fold.virtual))


def doubling_all_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """alpha log2 n + m beta (n - 1) / n for powers of two, else with the fold.

    The virtual ranks that stand for pairs have the lowest numbers: those are the slowest.
    """
    fold = Fold(num_ranks)
    shares = [Fraction(fold.ranks_of(distance), num_ranks) for distance in _distances(fold.virtual)]
    if fold.extra:
        shares = [Fraction(1, num_ranks), *shares, Fraction(num_ranks - 1, num_ranks)]
    return rounds_of(*shares)


def doubling_all_reduce(num_ranks: int) -> MessagePlan:
    """Distances 1, 2, 4, ...: whole vectors are exchanged and added."""
    fold = Fold(num_ranks)
    builder = PlanBuilder(fold.virtual, 1)
    # Both partners send at once.
    rank = np.arange(fold.virtual)
    for distance in _distances(fold.virtual):
        builder.next_round()
        builder.send(rank, rank ^ distance, np.zeros_like(rank), reduces=True)
    return folded_all_reduce(fold, builder.build())


def doubling_all_reduce_cost(num_ranks: int) -> AlphaBetaCost:
    """(log2 p + 2 f) (alpha + m beta), f = 1 where there is a fold."""
    fold = Fold(num_ranks)
    return rounds_of(*[1] * len(_distances(fold.virtual))) + fold_cost(fold)


def halving_all_reduce(num_ranks: int) -> MessagePlan:
    """A reduce-scatter by halves of the vector, then an all-gather by doubling."""
    fold = Fold(num_ranks)
    gather = _all_gather(fold.virtual)
    return folded_all_reduce(fold, gather.backwards(reduces=True).then(gather))


def halving_all_reduce_cost(num_ranks: int) -> AlphaBetaCost:
    """2 alpha log2 p + 2 m beta (p - 1) / p + 2 f (alpha + m beta)."""
    fold = Fold(num_ranks)
    shares = [Fraction(distance, fold.virtual) for distance in _distances(fold.virtual)]
    return rounds_of(*shares, *shares) + fold_cost(fold)


def _all_gather(virtual: int) -> MessagePlan:
    """Of a power of two ranks: to r xor d go the d blocks that r shares all higher bits with."""
    builder = PlanBuilder(virtual, virtual)
    rank = np.arange(virtual)
    for distance in _distances(virtual):
        builder.next_round()
        # What a rank holds begins at the multiple of the distance below it.
        builder.send_ranges(rank, rank ^ distance, rank & -distance, distance)
    return builder.build()


def _distances(virtual: int) -> list[int]:
    """1, 2, 4, ... below a power of two."""
    return [1 << bit for bit in range(virtual.bit_length() - 1)]
