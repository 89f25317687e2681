"""Which NPUs the ranks of an algorithm run on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hub_core.model import PLACEMENT, InputError, placed, placement_of
from hub_core.testing import ring_all_reduce


def test_ranks_run_on_their_own_numbers_unless_placed() -> None:
    assert placement_of(ring_all_reduce(4)) is None


def test_placement_is_kept_with_the_algorithm() -> None:
    assert placement_of(placed(ring_all_reduce(4), (1, 3, 5, 6))) == (1, 3, 5, 6)


def test_placement_on_own_numbers_is_none() -> None:
    elsewhere = placed(ring_all_reduce(4), (1, 3, 5, 6))
    assert placed(elsewhere, range(4)).extensions == {}


@pytest.mark.parametrize(
    "stated", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, -1], [0, 1, 2, True], [0, 1, 2, "3"], "0123", {}]
)
def test_what_is_no_list_of_one_npu_a_rank_is_refused(stated: object) -> None:
    ring = replace(ring_all_reduce(4), extensions={PLACEMENT: stated})
    with pytest.raises(InputError, match="no list of 4 different NPUs"):
        placement_of(ring)
