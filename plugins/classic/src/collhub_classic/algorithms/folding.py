"""Any number of ranks for algorithms that need a power of two.

With p the largest power of two up to n and e = n - p, the first 2 e ranks stand in pairs: the even
one hands its part to the odd one before, and gets the result after (Rabenseifner and Traff, 2004).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder


@dataclass(frozen=True, slots=True)
class Fold:
    """`ranks` ranks as `virtual` virtual ones, a power of two; `extra` of them stand for a pair."""

    ranks: int

    @property
    def virtual(self) -> int:
        """The largest power of two up to the number of ranks."""
        return 1 << (self.ranks.bit_length() - 1)

    @property
    def extra(self) -> int:
        """Ranks beyond the power of two: as many pairs are folded."""
        return self.ranks - self.virtual

    @property
    def rank_of(self) -> Int64Array:
        """The rank that acts for each virtual rank, the odd one of a pair."""
        v = np.arange(self.virtual)
        return np.where(v < self.extra, 2 * v + 1, v + self.extra)

    @property
    def first_of(self) -> Int64Array:
        """The first rank that each virtual rank stands for."""
        v = np.arange(self.virtual)
        return np.where(v < self.extra, 2 * v, v + self.extra)

    @property
    def size_of(self) -> Int64Array:
        """How many ranks each virtual rank stands for."""
        return np.where(np.arange(self.virtual) < self.extra, 2, 1)

    def ranks_of(self, virtual: int) -> int:
        """How many ranks the first virtual ones stand for together: the most that so many can."""
        return virtual + min(virtual, self.extra)


def folded_all_reduce(fold: Fold, inner: MessagePlan) -> MessagePlan:
    """An all-reduce of virtual ranks, between the handing in and the giving back of all blocks."""
    plan = inner.renamed(fold.rank_of, np.arange(inner.num_blocks))
    if not fold.extra:
        return plan
    even = np.arange(0, 2 * fold.extra, 2)
    before = PlanBuilder(fold.ranks, inner.num_blocks)
    before.next_round()
    before.send_ranges(even, even + 1, np.zeros_like(even), inner.num_blocks, reduces=True)
    after = PlanBuilder(fold.ranks, inner.num_blocks)
    after.next_round()
    after.send_ranges(even + 1, even, np.zeros_like(even), inner.num_blocks)
    return before.build().then(plan).then(after.build())


def fold_cost(fold: Fold) -> AlphaBetaCost:
    """What the handing in and the giving back add to an all-reduce."""
    return AlphaBetaCost(2, Fraction(2)) if fold.extra else AlphaBetaCost(0, Fraction(0))


def folded_all_gather(fold: Fold, inner: MessagePlan) -> MessagePlan:
    """An all-gather of virtual ranks, each with the blocks of all ranks that it stands for."""
    plan = inner.expanded(fold.first_of, fold.size_of, fold.ranks)
    plan = plan.renamed(fold.rank_of, np.arange(fold.ranks))
    if not fold.extra:
        return plan
    even = np.arange(0, 2 * fold.extra, 2)
    before = PlanBuilder(fold.ranks, fold.ranks)
    before.next_round()
    before.send(even, even + 1, even)
    after = PlanBuilder(fold.ranks, fold.ranks)
    after.next_round()
    # All but its own block.
    after.send_ranges(even + 1, even, even + 1, fold.ranks - 1)
    return before.build().then(plan).then(after.build())
