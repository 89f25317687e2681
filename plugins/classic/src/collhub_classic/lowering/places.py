"""Where each block of a collective lies: given in INPUT, wanted in OUTPUT, else in SCRATCH."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from hub_core.model import Collective, CollectiveKind


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """The places of blocks of one unit each.

    Block ids: unit of the vector where it is not split; share * pieces + piece where it is, and of
    an all-to-all (source * ranks + destination) * pieces + piece.
    """

    collective: Collective
    num_blocks: int

    @property
    def pieces(self) -> int:
        """Blocks of a share."""
        kind, ranks = self.collective.kind, self.collective.num_ranks
        shares = kind.traits.parts(ranks)
        # Every rank has a buffer of its own.
        if kind is CollectiveKind.ALL_TO_ALL:
            shares *= ranks
        return self.num_blocks // shares

    def input_offset(self, block: Int64Array) -> Int64Array:
        """Where the block lies in INPUT of a rank that has it from the beginning."""
        traits, pieces = self.collective.kind.traits, self.pieces
        share, piece = np.divmod(block, pieces)
        if traits.split_by_source and traits.split_by_target:
            return share % self.collective.num_ranks * pieces + piece
        return piece if traits.split_by_source else block

    def output_offset(self, block: Int64Array) -> Int64Array:
        """Where the block lies in OUTPUT of a rank that must have it."""
        traits, pieces = self.collective.kind.traits, self.pieces
        share, piece = np.divmod(block, pieces)
        if traits.split_by_source and traits.split_by_target:
            return share // self.collective.num_ranks * pieces + piece
        return piece if traits.split_by_target else block

    def is_wanted(self, rank: Int64Array, block: Int64Array) -> BoolArray:
        """Whether a rank must have a block in the end."""
        traits, share = self.collective.kind.traits, block // self.pieces
        if traits.to_root:
            return np.equal(rank, self.collective.root or 0)
        if traits.split_by_source and traits.split_by_target:
            return np.equal(rank, share % self.collective.num_ranks)
        if traits.split_by_target:
            return np.equal(rank, share)
        return np.ones(len(rank), np.bool_)

    def kept(self) -> tuple[Int64Array, Int64Array]:
        """(rank, block): what a rank is given, must have, and gets from nobody."""
        kind, ranks = self.collective.kind, self.collective.num_ranks
        traits, pieces = kind.traits, self.pieces
        if traits.reduces:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        if kind is CollectiveKind.BROADCAST:
            share, rank = np.zeros(1, np.int64), np.asarray([self.collective.root])
        elif kind is CollectiveKind.ALL_TO_ALL:
            rank = np.arange(ranks)
            share = rank * ranks + rank
        else:
            is_rooted = traits.from_root or traits.to_root
            rank = np.asarray([self.collective.root]) if is_rooted else np.arange(ranks)
            share = rank
        block = share[:, None] * pieces + np.arange(pieces)
        return np.repeat(rank, pieces), block.ravel()
