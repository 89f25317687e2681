"""Times of messages on links, compared with exact fractions and stated model by model."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import InputError
from hub_core.network import Occupancy, link_times_ns, link_times_ps

SIZES = st.integers(0, 1 << 40)
BANDWIDTHS = st.floats(1e9, 1e15)
LATENCIES = st.integers(0, 10**10).map(lambda picoseconds: picoseconds / 1e12)


@given(SIZES, BANDWIDTHS, LATENCIES)
def test_picoseconds_are_the_nearest_to_the_exact_times(size, bandwidth, latency_s):
    busy, arrival = link_times_ps(np.asarray([bandwidth]), np.asarray([latency_s]), size)
    exact = Fraction(size) * 10**12 / Fraction(bandwidth)
    # Half a picosecond by rounding; a double has 53 bits.
    assert abs(busy[0] - exact) <= Fraction(1, 2) + exact / 2**50
    assert arrival[0] - busy[0] == round(latency_s * 1e12)


@pytest.mark.parametrize("times", [link_times_ns, link_times_ps])
def test_links_of_the_alpha_beta_model_are_busy_until_the_arrival(times):
    columns = np.asarray([1e9, 3e9]), np.asarray([5.0, 0.0]), np.asarray([[8], [1 << 20]])
    busy, arrival = times(*columns, Occupancy.ALPHA_BETA)
    assert np.array_equal(busy, arrival)
    _, same = times(*columns, Occupancy.SERIALIZATION)
    assert np.array_equal(arrival, same)


def test_busy_times_have_the_shape_of_the_arrivals():
    busy, arrival = link_times_ps(np.asarray([1e9]), np.asarray([0.0, 1e-6]), 1000)
    assert busy.tolist() == [1_000_000, 1_000_000]
    assert arrival.tolist() == [1_000_000, 2_000_000]


def test_messages_of_more_than_fourteen_hours_are_refused():
    with pytest.raises(InputError, match="a message takes 1e\\+05 s on a link; times are counted"):
        link_times_ps(np.asarray([1.0]), np.asarray([0.0]), 100_000)


@pytest.mark.parametrize(("bandwidth", "latency_ns"), [(1.0, 0.0), (1e12, 5e18)])
def test_messages_of_more_than_146_years_are_refused(bandwidth, latency_ns):
    with pytest.raises(InputError, match="longer than 146 years"):
        link_times_ns(np.asarray([bandwidth]), np.asarray([latency_ns]), np.asarray([1 << 40]))
