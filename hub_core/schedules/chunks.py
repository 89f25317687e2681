"""Chunks: the pieces of a collective's data that travel as a whole."""

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

    `origin`: the rank whose INPUT holds the chunk before, or -1: all ranks contribute, and it is
    reduced. `input_offset`, `output_offset`, `count`: where it lies in INPUT before, in OUTPUT
    after, and its units. `target`: the rank that must have it, or -1 for all.
    """

    origin: Int64Array
    input_offset: Int64Array
    output_offset: Int64Array
    count: Int64Array
    target: Int64Array

    @classmethod
    def cut(cls, collective: Collective, sizes: Sequence[int] | Int64Array) -> Chunks:
        """Cut every share of a collective into pieces of `sizes` units.

        A share is what one rank gives, or gets, or sends to one other; the whole vector where it is
        not split. The sizes add up to a share, `collective.units_per_rank`, else `InputError`.
        Chunk ids: `share * len(sizes) + piece`; shares of an all-to-all are numbered
        `source * num_ranks + destination`.
        """
        pieces = np.asarray(sizes, np.int64)
        units = collective.units_per_rank
        _check_pieces(pieces, units)
        shares = _SharesOfRanks.of(collective)
        within = first_positions(pieces)
        return cls(
            np.repeat(shares.origin, len(pieces)),
            (shares.of_input[:, None] * units + within).ravel(),
            (shares.of_output[:, None] * units + within).ravel(),
            np.tile(pieces, len(shares.origin)),
            np.repeat(shares.target, len(pieces)),
        )


def _check_pieces(pieces: Int64Array, units: int) -> None:
    """Raise `InputError` unless the pieces make up a share of so many units."""
    total = int(pieces.sum())
    smallest = int(pieces.min(initial=1))
    if total == units and smallest >= 1:
        return
    raise InputError(f"pieces of {total} units do not make a share of {units}")


@dataclass(frozen=True, slots=True, eq=False)
class _SharesOfRanks:
    """Who gives each share, its number within INPUT and OUTPUT, and who takes it; int64 columns."""

    origin: Int64Array
    of_input: Int64Array
    of_output: Int64Array
    target: Int64Array

    @classmethod
    def of(cls, collective: Collective) -> _SharesOfRanks:
        """The shares of a collective of the field, in the order of chunk ids."""
        traits = collective.kind.traits
        giver, taker = _givers_and_takers(collective)
        nothing = np.zeros(len(giver), np.int64)
        origin = giver
        if traits.reduces:
            origin = nothing + ALL_RANKS
        elif traits.from_root:
            origin = np.full_like(giver, collective.root)
        target = nothing + ALL_RANKS
        if traits.to_root:
            target = np.full_like(giver, collective.root)
        elif traits.split_by_target:
            target = taker
        return cls(
            origin,
            of_input=taker if traits.split_by_target else nothing,
            of_output=giver if traits.split_by_source else nothing,
            target=target,
        )


def _givers_and_takers(collective: Collective) -> tuple[Int64Array, Int64Array]:
    """Per share, the rank that it belongs to before, and after, int64."""
    ranks, traits = collective.num_ranks, collective.kind.traits
    if traits.split_by_source and traits.split_by_target:
        # As in an all-to-all: a share for every pair of ranks.
        return np.divmod(np.arange(ranks * ranks), ranks)
    shares = np.arange(collective.unit_count // collective.units_per_rank)
    return shares, shares
