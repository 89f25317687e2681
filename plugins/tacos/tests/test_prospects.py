"""Ways that fall behind with every number of pieces are given up."""

from __future__ import annotations

import pytest
from collhub_tacos.search.candidates import Prospects, Variant

FAST, SLOW = Variant("form", 0, "rule"), Variant("form", 1, "rule")


def _prospects(*slow_ps: int | None) -> Prospects:
    """After 1, 2, 4, ... pieces, with which the other way took 100 ps."""
    prospects = Prospects()
    for rung, time_ps in enumerate(slow_ps):
        pieces = 2**rung
        prospects.note(FAST, pieces, 100)
        prospects.note(SLOW, pieces, time_ps)
    return prospects


@pytest.mark.parametrize(
    ("slow_ps", "is_good"),
    [
        pytest.param([300], True, id="once far behind"),
        pytest.param([300, 300], False, id="twice, and no faster"),
        pytest.param([300, 250], True, id="much faster"),
        pytest.param([300, 105], True, id="near at last"),
        pytest.param([None, None], False, id="not compared"),
        pytest.param([105, 300, 310], False, id="the last two count"),
    ],
)
def test_a_way_is_given_up_when_it_is_often_far_behind(slow_ps, is_good):
    prospects = _prospects(*slow_ps)
    pieces = 2 ** len(slow_ps)
    assert prospects.is_promising(SLOW, pieces) is is_good
    assert prospects.is_promising(FAST, pieces)


def test_pieces_with_which_no_way_was_compared_tell_nothing():
    prospects = _prospects(100, 100, 100)
    prospects.note(SLOW, 8, None)
    prospects.note(FAST, 8, None)
    prospects.note(SLOW, 9, 100)
    prospects.note(FAST, 9, 100)
    assert prospects.is_promising(SLOW, 16)


def test_a_way_that_is_given_up_stays_so_with_more_pieces():
    prospects = _prospects(300, 300, 300)
    prospects.note(FAST, 8, 100)
    assert not prospects.is_promising(SLOW, 16)


def test_numbers_of_pieces_near_each_other_do_not_tell_a_gain():
    prospects = _prospects(300, 250)
    prospects.note(FAST, 3, 100)
    prospects.note(SLOW, 3, 200)
    assert prospects.is_promising(SLOW, 4)
    prospects.note(FAST, 4, 100)
    # As many as with 3 pieces, but far fewer than with 2.
    prospects.note(SLOW, 4, 200)
    assert prospects.is_promising(SLOW, 5)


def test_a_spreading_is_made_for_any_of_its_rules():
    prospects = _prospects(300, 300, 300)
    assert not prospects.is_worth_building("form", 1, 8)
    prospects.note(Variant("form", 1, "another rule"), 2, 100)
    assert prospects.is_worth_building("form", 1, 8)
    assert prospects.is_worth_building("form", 2, 8)
