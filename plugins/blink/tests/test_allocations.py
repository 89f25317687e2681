"""The kinds of GPU sets that a scheduler can give."""

from __future__ import annotations

import pytest
from collhub_blink.allocations import AllocationClass, find_allocation_classes
from golden_classes import ROWS

from hub_core import parse_topology


@pytest.mark.parametrize(("machine", "count"), [("dgx1v", 46), ("dgx1p", 14)])
def test_a_dgx_1_has_as_many_kinds_as_published(machine: str, count: int) -> None:
    # Wang et al., MLSys 2020: 46 and 14 for 3 to 8 GPUs.
    assert len(find_allocation_classes(parse_topology(machine), range(3, 9))) == count


@pytest.mark.parametrize("machine", ROWS)
def test_kinds_and_their_sizes_are_those_of_the_golden_table(machine: str) -> None:
    expected = [AllocationClass(row[0], row[1]) for row in ROWS[machine]]
    assert find_allocation_classes(parse_topology(machine), range(3, 9)) == expected


def test_bandwidths_tell_kinds_apart() -> None:
    assert len(find_allocation_classes(parse_topology("dgx1v"), [2])) == 2
    assert len(find_allocation_classes(parse_topology("dgx1p"), [2])) == 1


def test_all_pairs_of_a_full_network_are_of_one_kind() -> None:
    assert find_allocation_classes(parse_topology("fc:5"), [2]) == [AllocationClass((0, 1), 10)]


def test_sets_that_only_a_switch_joins_are_not_connected() -> None:
    assert find_allocation_classes(parse_topology("switch:4"), [2, 3]) == []
