"""A collective among some NPUs of a network: the same promise, made by ranks of other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hub_core.model.collectives import ALL_RANKS, Collective, Contributions, CustomContract
from hub_core.model.columns import Int64Array, counted_positions
from hub_core.model.kinds import CollectiveKind


def collective_among(collective: Collective, npus: Sequence[int], num_npus: int) -> Collective:
    """The promise of `collective`, made by rank `npus[r]` of `num_npus` instead of rank r.

    The collective itself where all take part in order, else a custom one, in which other ranks have
    no INPUT and no OUTPUT. Custom collectives are in place as one buffer, which holds only for
    kinds that are so themselves: the claim stays where they are, and out of place is claimed
    otherwise.
    """
    if list(npus) == list(range(num_npus)):
        return collective
    return replace(
        collective,
        kind=CollectiveKind.CUSTOM,
        num_ranks=num_npus,
        root=None,
        contract=_contract_among(collective, np.asarray(npus, np.int64), num_npus),
        # Where a buffer has a part for every rank, in place means something else there.
        in_place=collective.in_place and not collective.kind.traits.is_split,
        out_of_place=True,
    )


def with_ranks_named(rows: Contributions, num_ranks: int) -> Contributions:
    """The same relation with a row for every contributing rank in the place of `ALL_RANKS`."""
    is_everyone = rows.source_rank == ALL_RANKS
    if not is_everyone.any():
        return rows
    times = np.where(is_everyone, num_ranks, 1)
    row = np.repeat(np.arange(len(rows)), times)
    named = np.where(is_everyone[row], counted_positions(times), rows.source_rank[row])
    return Contributions(rows.rank[row], rows.offset[row], named, rows.source_unit[row])


def _contract_among(collective: Collective, place: Int64Array, num_npus: int) -> CustomContract:
    """The contract of a collective of the field, with rank r at `place[r]`."""
    stated = collective.postcondition()
    assert stated is not None
    expected = with_ranks_named(stated, collective.num_ranks)
    inputs = np.zeros(num_npus, np.int64)
    outputs = np.zeros(num_npus, np.int64)
    defined = np.zeros(num_npus, np.bool_)
    inputs[place] = collective.input_units()
    outputs[place] = collective.output_units()
    defined[place] = collective.defined_inputs()
    moved = Contributions(
        place[expected.rank],
        expected.offset,
        place[expected.source_rank],
        expected.source_unit,
    )
    return CustomContract(inputs, outputs, defined, moved)
