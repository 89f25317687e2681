"""A collective among some NPUs promises the same to its members, and nothing to others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import ALL_RANKS, ROOTED, STANDARD_KINDS, Collective, CollectiveKind
from hub_core.schedules.algorithms import collective_among


@given(st.sampled_from(STANDARD_KINDS), st.integers(1, 4), st.integers(0, 3), st.data())
def test_group_promises_the_same_to_its_members(kind, num_ranks, others, data):
    collective = Collective(kind, num_ranks, num_ranks * 2, 0 if kind in ROOTED else None)
    npus = data.draw(st.permutations(range(num_ranks + others)))[:num_ranks]
    among = collective_among(collective, npus, num_ranks + others)
    if npus == [*range(num_ranks + others)]:
        assert among is collective
        return
    assert (among.kind, among.num_ranks) == (CollectiveKind.CUSTOM, num_ranks + others)
    assert among.input_units()[npus].tolist() == collective.input_units().tolist()
    assert among.output_units().sum() == collective.output_units().sum()
    relays = sorted(set(range(num_ranks + others)) - set(npus))
    assert not among.defined_inputs()[relays].any()
    expected, stated = among.postcondition(), collective.postcondition()
    assert expected is not None
    assert stated is not None
    named = np.where(stated.source_rank == ALL_RANKS, num_ranks, 1).sum()
    assert len(expected) == named
    assert set(expected.rank.tolist()) <= set(npus)
    assert set(expected.source_rank.tolist()) <= set(npus)
