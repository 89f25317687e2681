"""Bytes that a collective must move out of sets of ranks, for lower bounds by cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model.collectives import Collective
from hub_core.model.kinds import CollectiveKind


@dataclass(frozen=True, slots=True, eq=False)
class RankSets:
    """Sets of ranks as columns, one row per set, float64[sets] each.

    `ranks`: number of ranks; `shares`: bytes of their shares of the buffer; `has_root`: 1 if the
    root is in the set, else 0. `sent`, `received`: bytes from ranks of the set to other ranks, and
    from these to it, in an all-to-all-v; otherwise 0.
    """

    ranks: Float64Array
    shares: Float64Array
    has_root: Float64Array
    sent: Float64Array
    received: Float64Array


@dataclass(frozen=True)
class Traffic:
    """A collective of `size` bytes, and the bytes that must leave sets of its ranks.

    The share of rank r is bytes `[r * size // n, (r + 1) * size // n)`: shares differ by at most
    one byte. In an uneven collective it is in proportion to its count, in an all-to-all-v to all
    units that the rank receives from other ranks.
    """

    collective: Collective
    size: int

    @cached_property
    def share(self) -> Float64Array:
        """Return the bytes of the share of every rank, float64[ranks].

        The size is divided at size * rank // ranks, so that shares differ by at most 1 byte and add
        up to the size. Those of uneven collectives are exact, and not rounded.
        """
        if self.collective.counts is not None:
            received: Float64Array = self.pair_bytes.sum(axis=0)
            return received
        n = self.collective.num_ranks
        # Python integers: size times ranks may exceed 64 bits.
        borders = [self.size * rank // n for rank in range(n + 1)]
        return np.diff(np.asarray(borders, np.float64))

    @cached_property
    def pair_bytes(self) -> Float64Array:
        """Return the bytes of an uneven collective from rank to rank, float64[ranks, ranks].

        Without the data that stay on their rank. Of an all-gather-v or a reduce-scatter-v: one row,
        the bytes of every rank's part.
        """
        assert self.collective.counts is not None
        table = self.collective.counts.table.astype(np.float64)
        table *= self.size / self.collective.unit_count
        if not self.collective.counts.is_per_pair:
            return table[None]
        np.fill_diagonal(table, 0.0)
        return table

    @property
    def is_known(self) -> bool:
        """Whether bounds of this kind are known; False for custom collectives."""
        return self.collective.kind in _LEAVING

    def sets_of(self, label: Int64Array, count: int) -> RankSets:
        """Build `count` sets of ranks: set k has the ranks whose `label` is k.

        `label`: int64[ranks], -1 for a rank in no set. Stored are the number of ranks, the bytes of
        their shares, and whether the root is in it (1.0, else 0.0). A set may be empty.
        """
        inside = label >= 0
        set_index = label[inside]
        ranks = np.bincount(set_index, minlength=count).astype(np.float64)
        shares = np.bincount(set_index, self.share[inside], count).astype(np.float64)
        has_root = np.zeros(count)
        root = self.collective.root
        if root is not None and label[root] >= 0:
            has_root[label[root]] = 1.0
        sent, received = self._exchanged(label, count, is_prefix=False)
        return RankSets(ranks, shares, has_root, sent, received)

    def prefixes_of(self, position: Int64Array, count: int) -> RankSets:
        """Build `count` - 1 sets of ranks: set k has the ranks at positions 0..k of an order.

        `position`: int64[ranks], from 0.
        """
        sets = self.sets_of(position, count)
        sent, received = self._exchanged(position, count, is_prefix=True)
        return RankSets(
            np.cumsum(sets.ranks)[:-1],
            np.cumsum(sets.shares)[:-1],
            np.cumsum(sets.has_root)[:-1],
            sent,
            received,
        )

    def _exchanged(
        self, label: Int64Array, count: int, is_prefix: bool
    ) -> tuple[Float64Array, Float64Array]:
        """Return the bytes that sets of ranks send to and receive from other ranks: float64[sets].

        Zeros unless the collective is an all-to-all-v. A set has the ranks of one label, or, if
        `is_prefix`, those of labels 0..k; the set of all labels is then left out.
        """
        sets = count - 1 if is_prefix else count
        if self.collective.kind is not CollectiveKind.ALL_TO_ALL_V:
            return np.zeros(sets), np.zeros(sets)
        # Ranks in no set have the label -1 and are counted as the set `count`.
        inside = np.where(label >= 0, label, count)
        pair = inside[:, None] * (count + 1) + inside
        cells = np.bincount(pair.ravel(), self.pair_bytes.ravel(), (count + 1) ** 2)
        between = cells.reshape(count + 1, count + 1)
        internal = np.diag(between)
        if is_prefix:
            internal = np.diag(np.cumsum(np.cumsum(between, axis=0), axis=1))
            leaving, entering = (np.cumsum(between.sum(axis=axis)) for axis in (1, 0))
        else:
            leaving, entering = between.sum(axis=1), between.sum(axis=0)
        sent, received = leaving - internal, entering - internal
        # Rounding errors of the differences must not give negative bytes.
        return np.maximum(sent[:sets], 0.0), np.maximum(received[:sets], 0.0)

    def complements(self, sets: RankSets) -> RankSets:
        """Build the complement of each set: all ranks that are not in it.

        Its shares are those of the collective minus those of the set; it has the root if the set
        has not; the sent bytes of the set are received by its complement, and conversely.
        """
        has_root = 1.0 - sets.has_root if self.collective.root is not None else sets.has_root
        return RankSets(
            self.collective.num_ranks - sets.ranks,
            self.size - sets.shares,
            has_root,
            sets.received,
            sets.sent,
        )

    def leaving(self, sets: RankSets) -> Float64Array:
        """Return the bytes that must leave each set, float64[sets].

        Reductions are combined within the set first. Empty sets and the set of all ranks have 0.
        """
        is_divided = (sets.ranks > 0) & (sets.ranks < self.collective.num_ranks)
        needed = _LEAVING[self.collective.kind](sets, float(self.size))
        return np.where(is_divided, needed, 0.0)

    def between(self, blocks: RankSets) -> float:
        """Return the minimum bytes of all messages between the blocks of a partition of the ranks.

        In every algorithm, each unit crosses to (or from) every other ends in one message per
        ends, in an all-reduce in two (Patarasuk and Yuan, JPDC 2009, with ranks as blocks). Not
        valid for switches that multicast or reduce.
        """
        kind = self.collective.kind
        crossings = float(np.count_nonzero(blocks.ranks)) - 1.0
        if kind is CollectiveKind.ALL_REDUCE:
            return 2 * crossings * self.size
        if kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER):
            return float(blocks.shares[blocks.has_root == 0].sum())
        if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V):
            return float(self.leaving(blocks).sum())
        return crossings * self.size


def dependent_pairs(collective: Collective) -> BoolArray:
    """Return which ranks of an uneven collective need data of which: bool[ranks, ranks] (from, to).

    False on the diagonal. A part of an all-gather-v goes to all ranks, a part of a reduce-scatter-v
    comes from all ranks; empty parts and messages cause no dependency.
    """
    assert collective.counts is not None
    ranks, needs = collective.num_ranks, collective.counts.table > 0
    if not collective.counts.is_per_pair:
        is_gather = collective.kind.traits.input_is_part
        needs = np.broadcast_to(needs[:, None] if is_gather else needs, (ranks, ranks))
    is_other: BoolArray = needs & ~np.eye(ranks, dtype=np.bool_)
    return is_other


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
    CollectiveKind.ALL_GATHER_V: lambda sets, size: sets.shares,
    CollectiveKind.REDUCE_SCATTER_V: lambda sets, size: size - sets.shares,
    CollectiveKind.ALL_TO_ALL_V: lambda sets, size: sets.sent,
}
