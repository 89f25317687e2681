"""Swing: partners left and right in turn, at short distances (De Sensi et al., NSDI 2024)."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.algorithms.folding import Fold, folded_all_reduce
from collhub_classic.message_plan import MessagePlan, PlanBuilder


def swing_all_gather(num_ranks: int) -> MessagePlan:
    """Of a power of two ranks: each rank sends all that it has, far partners first.

    In step s = L - 1, ..., 0 the partner of an even rank is (1 - (-2)^(s + 1)) / 3 ahead, that of
    an odd one as far behind.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    held = rank[:, None]
    for step in reversed(range(num_ranks.bit_length() - 1)):
        partner = _partners(num_ranks, step)
        builder.next_round()
        builder.send(rank, partner, held)
        held = np.concatenate([held, held[partner]], axis=1)
    return builder.build()


def swing_all_reduce(num_ranks: int) -> MessagePlan:
    """The all-gather backwards, then forwards; for any number of ranks by folding."""
    fold = Fold(num_ranks)
    gather = swing_all_gather(fold.virtual)
    return folded_all_reduce(fold, gather.backwards(reduces=True).then(gather))


def _partners(num_ranks: int, step: int) -> Int64Array:
    """The partner of every rank in a step."""
    rank = np.arange(num_ranks)
    distance = (1 - (-2) ** (step + 1)) // 3
    partner: Int64Array = (rank + np.where(rank % 2 == 0, distance, -distance)) % num_ranks
    return partner
