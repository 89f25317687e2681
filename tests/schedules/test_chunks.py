"""Chunks: every share of a collective is cut into the stated sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import ROOTED, STANDARD_KINDS, Collective, CollectiveKind, InputError
from hub_core.schedules import Chunks


@given(
    st.sampled_from(STANDARD_KINDS),
    st.integers(1, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_chunks_cut_every_share_into_the_stated_sizes(kind, num_ranks, sizes):
    whole = kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST)
    collective = Collective(
        kind, num_ranks, sum(sizes) * (1 if whole else num_ranks), 0 if kind in ROOTED else None
    )
    chunks = Chunks.cut(collective, sizes)
    shares = 1 if whole else num_ranks**2 if kind is CollectiveKind.ALL_TO_ALL else num_ranks
    assert len(chunks) == shares * len(sizes)
    assert chunks.count.tolist() == sizes * shares
    assert np.all(chunks.input_offset + chunks.count <= collective.input_units().max())
    assert np.all(chunks.output_offset + chunks.count <= collective.output_units().max())


@pytest.mark.parametrize("sizes", [[1, 2], [5], [4, 0], [5, -1], []])
def test_pieces_that_do_not_make_a_share_are_refused(sizes):
    with pytest.raises(InputError, match=r"chunks of .* units do not add up to a block of 4 units"):
        Chunks.cut(Collective(CollectiveKind.ALL_REDUCE, 3, 4), sizes)
