"""Chunks: the parts of a collective's data that a schedule sends as one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import ColumnTable, Int64Array, first_positions
from hub_core.model import ALL_RANKS, Collective, InputError

NO_RANK = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chunks(ColumnTable):
    """The chunks of a collective as int64 columns of equal length, in its units and ranks.

    `origin`: the rank whose INPUT initially contains the chunk; -1 if all ranks contribute and the
    chunk is reduced. `input_offset`, `output_offset`: its offsets in INPUT before and in OUTPUT
    after the collective. `count`: its size in units. `target`: the rank that must receive it; -1
    for all ranks.
    """

    origin: Int64Array
    input_offset: Int64Array
    output_offset: Int64Array
    count: Int64Array
    target: Int64Array

    @classmethod
    def cut(cls, collective: Collective, sizes: Sequence[int] | Int64Array) -> Chunks:
        """Divide every block of a collective into chunks of the given sizes in units.

        A block is the part of the data of one rank, in an all-to-all that of one pair of ranks; it
        is all data if the kind does not split them. Chunk ids: `block * len(sizes) + i`; blocks of
        an all-to-all are numbered `source * num_ranks + destination`.

        Raises `InputError` unless the sizes are positive and add up to a block, which has
        `collective.units_per_rank` units.
        """
        counts = np.asarray(sizes, np.int64)
        units = collective.units_per_rank
        total = int(counts.sum())
        if total != units or int(counts.min(initial=1)) < 1:
            raise InputError(f"chunks of {total} units do not add up to a block of {units} units")
        blocks = _RankBlocks.from_collective(collective)
        offsets = first_positions(counts)
        return cls(
            np.repeat(blocks.origin, len(counts)),
            (blocks.input_index[:, None] * units + offsets).ravel(),
            (blocks.output_index[:, None] * units + offsets).ravel(),
            np.tile(counts, len(blocks.origin)),
            np.repeat(blocks.target, len(counts)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _RankBlocks:
    """Blocks as int64 columns.

    `origin`, `target`: as in `Chunks`. `input_index`, `output_index`: the position of the block
    among the blocks of INPUT and of OUTPUT.
    """

    origin: Int64Array
    input_index: Int64Array
    output_index: Int64Array
    target: Int64Array

    @classmethod
    def from_collective(cls, collective: Collective) -> _RankBlocks:
        """Blocks of a standard collective, in the order of chunk ids."""
        ranks, traits = collective.num_ranks, collective.kind.traits
        if traits.split_by_source and traits.split_by_target:
            # All-to-all: a block for every pair of ranks.
            source, destination = np.divmod(np.arange(ranks * ranks), ranks)
        else:
            source = np.arange(collective.unit_count // collective.units_per_rank)
            destination = source
        zeros = np.zeros(len(source), np.int64)
        origin = source
        if traits.reduces:
            origin = zeros + ALL_RANKS
        elif traits.from_root:
            origin = np.full_like(source, collective.root)
        target = zeros + ALL_RANKS
        if traits.to_root:
            target = np.full_like(source, collective.root)
        elif traits.split_by_target:
            target = destination
        return cls(
            origin,
            input_index=destination if traits.split_by_target else zeros,
            output_index=source if traits.split_by_source else zeros,
            target=target,
        )
