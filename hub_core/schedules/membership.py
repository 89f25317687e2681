"""A collective among some NPUs of a network: the same promise, made by ranks of other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, Contributions, CustomContract


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


def _contract_among(collective: Collective, place: Int64Array, num_npus: int) -> CustomContract:
    """The contract of a collective of the field, with rank r at `place[r]`."""
    stated = collective.postcondition()
    assert stated is not None
    expected = stated.with_ranks_named(collective.num_ranks)
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
