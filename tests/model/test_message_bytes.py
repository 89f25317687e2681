"""Sizes of messages: exact, or refused where they cannot be counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import InputError, message_bytes


def test_messages_with_more_bytes_than_int64_holds_are_refused() -> None:
    counts = np.full(3, 4, np.int64)
    assert message_bytes(2**62, 8, counts).sum() == 3 * 2**61
    with pytest.raises(InputError, match="bytes together, more than can be counted"):
        message_bytes(2**62, 8, np.full(5, 4, np.int64))


@given(st.integers(1, 2**62), st.integers(1, 2**40), st.lists(st.integers(0, 2**41), max_size=8))
def test_message_bytes_sum_exactly_or_are_refused(size: int, units: int, counts: list[int]) -> None:
    exact = [-(-count * size // units) for count in counts]
    try:
        found = message_bytes(size, units, np.asarray(counts, np.int64))
    except InputError:
        assert sum(exact) >= 2**63 * (1 - 1e-8)
        return
    assert found.tolist() == exact
    assert int(found.sum()) == sum(exact)
