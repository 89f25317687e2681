"""Shares of two channels: the published formula, and that no other division is faster."""

from __future__ import annotations

import pytest
from collhub_blink.scheduling import Channel, balanced_shares, combined_rate
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import UsageError

PCIE = Channel(10e9, setup_s=2e-3)


# GB/s by the formula of Wang et al., MLSys 2020, with 2 ms to switch peer access, computed 2026-11.
@pytest.mark.parametrize(
    ("nvlink", "gigabytes", "expected"),
    [(50, 0.5, 57.7), (50, 1, 58.8), (50, 0.1, 50), (150, 0.5, 153.8), (150, 1, 156.9)],
)
def test_both_channels_reach_the_published_balance(
    nvlink: float, gigabytes: float, expected: float
) -> None:
    assert combined_rate(gigabytes * 1e9, Channel(nvlink * 1e9), PCIE) / 1e9 == pytest.approx(
        expected, abs=0.05
    )


def test_a_channel_that_starts_too_late_gets_nothing() -> None:
    assert balanced_shares(0.1e9, Channel(50e9), PCIE) == (0.1e9, 0.0)
    assert balanced_shares(0.1e9, PCIE, Channel(50e9)) == (0.0, 0.1e9)


RATES = st.floats(1e6, 1e12)
TIMES = st.floats(0, 1)


@given(
    st.floats(1, 1e12),
    st.builds(Channel, RATES, TIMES),
    st.builds(Channel, RATES, TIMES),
    st.floats(0, 1),
)
def test_no_other_division_is_faster(
    size: float, one: Channel, other: Channel, part: float
) -> None:
    best = size / combined_rate(size, one, other)
    assert best <= max(one.time_s(size * part), other.time_s(size * (1 - part))) * (1 + 1e-9)


def test_a_channel_without_a_rate_is_refused() -> None:
    with pytest.raises(UsageError, match="a channel of 0 bytes/s"):
        Channel(0)
