"""Bytes that every algorithm of a collective must send out of a set of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hub_core.columns import Float64Array, Int64Array
from hub_core.model.collectives import Collective
from hub_core.model.kinds import CollectiveKind


@dataclass(frozen=True, slots=True, eq=False)
class RankSets:
    """Sets of ranks as columns, one row per set, float64[sets] each.

    `ranks`: number of ranks; `shares`: bytes of their shares of the buffer; `has_root`: 1 if the
    root is in the set, else 0.
    """

    ranks: Float64Array
    shares: Float64Array
    has_root: Float64Array


@dataclass(frozen=True)
class Traffic:
    """A collective of `size` bytes, and the bytes that must leave sets of its ranks.

    The share of rank r is bytes `[r * size // n, (r + 1) * size // n)`: shares differ by at most
    one byte.
    """

    collective: Collective
    size: int

    @cached_property
    def share(self) -> Float64Array:
        """Bytes of the share of every rank, float64[ranks]."""
        n = self.collective.num_ranks
        # Python integers: size times ranks may exceed 64 bits.
        borders = [self.size * rank // n for rank in range(n + 1)]
        return np.diff(np.asarray(borders, np.float64))

    @property
    def is_known(self) -> bool:
        """Whether bounds of this kind are known; False for custom collectives."""
        return self.collective.kind in _LEAVING

    def sets_of(self, label: Int64Array, count: int) -> RankSets:
        """Build `count` sets: set k has the ranks with `label` k (int64[ranks], -1 for no set)."""
        inside = label >= 0
        set_index = label[inside]
        ranks = np.bincount(set_index, minlength=count).astype(np.float64)
        shares = np.bincount(set_index, self.share[inside], count).astype(np.float64)
        has_root = np.zeros(count)
        root = self.collective.root
        if root is not None and label[root] >= 0:
            has_root[label[root]] = 1.0
        return RankSets(ranks, shares, has_root)

    def complements(self, sets: RankSets) -> RankSets:
        """Build the complement of each set: all ranks that are not in it."""
        has_root = 1.0 - sets.has_root if self.collective.root is not None else sets.has_root
        return RankSets(self.collective.num_ranks - sets.ranks, self.size - sets.shares, has_root)

    def leaving(self, sets: RankSets) -> Float64Array:
        """Return the bytes that must leave each set, float64[sets].

        Reductions are combined within the set first. Empty sets and the set of all ranks have 0.
        """
        is_divided = (sets.ranks > 0) & (sets.ranks < self.collective.num_ranks)
        needed = _LEAVING[self.collective.kind](sets, float(self.size))
        return np.where(is_divided, needed, 0.0)

    def between(self, blocks: RankSets) -> float:
        """Return the minimum bytes of all messages between the blocks of a partition of the ranks.

        In every algorithm, each unit crosses to (or from) every other block in one message per
        block, in an all-reduce in two (Patarasuk and Yuan, JPDC 2009, with ranks as blocks). Not
        valid for switches that multicast or reduce.
        """
        kind = self.collective.kind
        crossings = float(np.count_nonzero(blocks.ranks)) - 1.0
        if kind is CollectiveKind.ALL_REDUCE:
            return 2 * crossings * self.size
        if kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER):
            return float(blocks.shares[blocks.has_root == 0].sum())
        if kind is CollectiveKind.ALL_TO_ALL:
            return float(self.leaving(blocks).sum())
        return crossings * self.size


_Leaving = Callable[[RankSets, float], Float64Array]
# Bytes that must leave a set with at least one rank but not all.
_LEAVING: Mapping[CollectiveKind, _Leaving] = {
    CollectiveKind.ALL_REDUCE: lambda sets, size: np.full(len(sets.ranks), size),
    CollectiveKind.ALL_GATHER: lambda sets, size: sets.shares,
    CollectiveKind.REDUCE_SCATTER: lambda sets, size: size - sets.shares,
    CollectiveKind.ALL_TO_ALL: lambda sets, size: sets.ranks * (size - sets.shares),
    CollectiveKind.BROADCAST: lambda sets, size: sets.has_root * size,
    CollectiveKind.REDUCE: lambda sets, size: (1.0 - sets.has_root) * size,
    CollectiveKind.GATHER: lambda sets, size: (1.0 - sets.has_root) * sets.shares,
    CollectiveKind.SCATTER: lambda sets, size: sets.has_root * (size - sets.shares),
}
