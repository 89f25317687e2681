"""Ways that fall behind with every number of pieces are given up."""

from __future__ import annotations

import pytest
from collhub_tacos.prospects import Prospects, Way

FAST, SLOW = Way("form", 0, "rule"), Way("form", 1, "rule")


def _prospects(*slow_ps: int | None) -> Prospects:
    """After 1, 2, ... pieces, with which the other way took 100 ps."""
    prospects = Prospects()
    for pieces, time_ps in enumerate(slow_ps, 1):
        prospects.note(FAST, pieces, 100)
        prospects.note(SLOW, pieces, time_ps)
    return prospects


@pytest.mark.parametrize(
    ("slow_ps", "is_good"),
    [
        pytest.param([300, 300], True, id="twice far behind"),
        pytest.param([300, 300, 300], False, id="three times, and no nearer"),
        pytest.param([300, 300, 200], True, id="nearer"),
        pytest.param([300, 105, 300], True, id="near before"),
        pytest.param([None, None, None], False, id="not compared"),
        pytest.param([105, 300, 300, 310], False, id="the last three count"),
    ],
)
def test_a_way_is_given_up_when_it_is_often_far_behind(slow_ps, is_good):
    prospects = _prospects(*slow_ps)
    pieces = len(slow_ps) + 1
    assert prospects.are_good(SLOW, pieces) is is_good
    assert prospects.are_good(FAST, pieces)


def test_a_way_that_is_given_up_stays_so_with_more_pieces():
    prospects = _prospects(300, 300, 300)
    prospects.note(FAST, 4, 100)
    assert not prospects.are_good(SLOW, 5)


def test_a_spreading_is_made_for_any_of_its_rules():
    prospects = _prospects(300, 300, 300)
    assert not prospects.has_place("form", 1, 4)
    prospects.note(Way("form", 1, "another rule"), 2, 100)
    assert prospects.has_place("form", 1, 4)
    assert prospects.has_place("form", 2, 4)
