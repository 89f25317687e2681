"""Pieces of shares on trees of arcs, whichever way the trees were found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    expanded_ranges,
    first_positions,
    group_of_entry,
    row_pointer,
    rows_of,
)

from collhub_flows.demand import FlowDemand
from collhub_flows.groups.shares import Shares
from collhub_flows.paths import FlowPaths


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Piece p is `units[p]` units of share `share[p]`, from `offset[p]` on; int64, by share.

    A share has `share_units` in all; `number[p]`: of the pieces of its share.
    """

    share: Int64Array
    offset: Int64Array
    units: Int64Array
    number: Int64Array
    share_units: int

    @classmethod
    def one_behind_another(
        cls, share: Int64Array, units: Int64Array, share_units: int
    ) -> Pieces:
        """Pieces of these sizes; `share` ascends, and every share has one."""
        begin = first_positions(units)
        counts = np.bincount(share)
        first = begin[first_positions(counts)]
        return cls(share, begin - first[share], units, counted_positions(counts), share_units)


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Tree t carries piece `piece[t]` on the entries `indptr[t]:indptr[t + 1]`; int64 and bool.

    Entry e is the arc `arcs[e]`, and hangs on entry `parent[e]`, -1 at the root: where the tree
    goes `inward` data flow towards the root, else away from it. A piece with two trees goes inward
    first.
    """

    pieces: Pieces
    piece: Int64Array
    inward: BoolArray
    indptr: Int64Array
    arcs: Int64Array
    parent: Int64Array

    @property
    def tree_of_entry(self) -> Int64Array:
        """The tree of every entry, int64."""
        return group_of_entry(self.indptr)


def path_trees(shares: Shares, demand: FlowDemand, paths: FlowPaths, most_pieces: int) -> Trees:
    """Trees of shares that are pairs: the paths of their pair, each cut in `most_pieces`."""
    path, units = paths.pieces(most_pieces)
    pair_pointer = row_pointer(np.bincount(paths.share[path]))
    nodes = demand.wants.shape[1]
    source, target = demand.pairs
    pair = rows_of(shares.root * nodes + shares.target, source * nodes + target)
    counts = np.diff(pair_pointer)[pair]
    # Every share of a pair takes all of its paths, in the same proportions.
    chosen = expanded_ranges(pair_pointer[pair], counts)
    share = np.repeat(np.arange(len(shares)), counts)
    pieces = Pieces.one_behind_another(share, units[chosen], paths.share_units)
    lengths = np.diff(paths.indptr)[path[chosen]]
    arcs = paths.arcs[expanded_ranges(paths.indptr[path[chosen]], lengths)]
    indptr = row_pointer(lengths)
    parent = np.arange(len(arcs)) - 1
    # The first arc of a path starts at the root.
    parent[indptr[:-1]] = -1
    number = np.arange(len(share))
    return Trees(pieces, number, np.zeros(len(share), np.bool_), indptr, arcs, parent)
