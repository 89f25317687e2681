"""Minimum traffic of collectives: the bytes that must cross the border of a set of ranks.

The traffic across a cut bounds the time of a collective.
"""

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
        """Bytes of the part of every rank: float64[ranks].

        - No counts: part r is the bytes [size * r // ranks, size * (r + 1) // ranks).
        - Counts per rank: the size times the rank's fraction of all counts, not rounded.
        - Counts per pair: the bytes that the rank receives from all other ranks, not rounded.
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
        """Bytes of an uneven collective by (sender, receiver), not rounded; float64.

        Counts per pair (all-to-all-v) give float64[ranks, ranks], row = sender, column = receiver,
        with 0 on the diagonal, because these data stay on their rank. Counts per rank
        (all-gather-v, reduce-scatter-v) give one row, float64[1, ranks], with the bytes of every
        rank's part. A collective without counts is not permitted (assertion).
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
        """Build `count` sets of ranks, in which set k has the ranks with label k.

        `label`: int64[ranks], -1 for a rank in no set. A set may be empty. Each set has the number
        of ranks, the bytes of their parts, 1.0 with the root (else 0.0), and the bytes that it
        exchanges with all other ranks, which are 0 except in an all-to-all-v.
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
        """Build `count` - 1 sets of ranks; set k has the ranks at positions 0..k of an order.

        `position`: int64[ranks], 0..`count` - 1, maybe repeated. The set of all ranks is omitted.
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
        """Return the bytes that each set of ranks sends to, and receives from, all other ranks.

        `label`: int64[ranks], 0..count-1, or -1 for a rank in no set. Set k has the ranks of label
        k or, with `is_prefix`, those of labels 0..k; then there are count - 1 sets, otherwise
        count. Both results are float64[sets]. Ranks in no set count as other ranks. Only an
        all-to-all-v has these bytes; for any other collective all results are 0.
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
        """Return the complement of each set: all ranks that are not in it.

        Its bytes are those of the collective minus those of the set. It has the root if the set
        does not (0 without a root). Bytes sent and received are exchanged.
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
        """Return the bytes that must leave each set: float64[sets], 0 for a set of no or all ranks.

        S: all bytes; s: shares of the set. All-reduce: S. All-gather: s. Reduce-scatter: S - s.
        All-to-all: (S - s) * ranks of the set, all-to-all-v: `sent`. With the root: broadcast S,
        scatter S - s. Without it: reduce S, gather s. Otherwise 0. Custom: `KeyError`.
        """
        is_divided = (sets.ranks > 0) & (sets.ranks < self.collective.num_ranks)
        needed = _LEAVING[self.collective.kind](sets, float(self.size))
        return np.where(is_divided, needed, 0.0)

    def between(self, blocks: RankSets) -> float:
        """Return the minimum bytes of all messages between the blocks of a partition of the ranks.

        With b blocks that contain ranks and a size of S bytes, it is (b - 1) * S, and twice that
        for an all-reduce (Patarasuk and Yuan, JPDC 2009, with ranks as blocks). Gather or scatter:
        the bytes of all blocks without the root. All-to-all(-v): the sum of the bytes that leave
        the blocks. It does not hold if switches multicast or reduce.
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
    """Return which ranks of an uneven collective need data of a rank: bool[from, to].

    The diagonal is False. A part of an all-gather-v is sent to all ranks, and a part of a
    reduce-scatter-v is received from all ranks. Empty parts cause no dependency. Counts must exist.
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
