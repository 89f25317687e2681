"""Pieces of shares, and the trees of arcs that they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    expanded_ranges,
    first_positions,
    group_of_entry,
    row_pointer,
)


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
    def one_behind_another(cls, share: Int64Array, units: Int64Array, share_units: int) -> Pieces:
        """Pieces of these sizes; `share` ascends, and every share has one."""
        begin = first_positions(units)
        counts = np.bincount(share)
        first = begin[first_positions(counts)]
        return cls(share, begin - first[share], units, counted_positions(counts), share_units)

    def cut(self, parts: int) -> Pieces:
        """Every piece in `parts` of equal size; units are as many times smaller."""
        piece = np.repeat(np.arange(len(self.share)), parts)
        part = np.tile(np.arange(parts), len(self.share))
        units = self.units[piece]
        each = np.bincount(self.share)[self.share[piece]]
        return Pieces(
            self.share[piece],
            self.offset[piece] * parts + part * units,
            units,
            # First parts of all pieces go before second ones.
            part * each + self.number[piece],
            self.share_units * parts,
        )


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

    def cut(self, parts: int) -> Trees:
        """The same trees for pieces cut in `parts` of equal size each."""
        trees = len(self.piece)
        # Copies of a tree stand together, so that its pieces are in order.
        tree = np.repeat(np.arange(trees), parts)
        copy = np.tile(np.arange(parts), trees)
        lengths = np.diff(self.indptr)[tree]
        entry = expanded_ranges(self.indptr[tree], lengths)
        indptr = row_pointer(lengths)
        shift = np.repeat(indptr[:-1] - self.indptr[tree], lengths)
        hung = self.parent[entry]
        parent = np.where(hung < 0, -1, hung + shift)
        piece = self.piece[tree] * parts + copy
        return Trees(
            self.pieces.cut(parts), piece, self.inward[tree], indptr, self.arcs[entry], parent
        )
