"""Machines and networks side by side on the same NPUs."""

from __future__ import annotations

import pytest

from hub_core import UsageError, parse_topology


def test_names_of_switches_stay_distinct() -> None:
    both = parse_topology("dgx-h100:2+dgx-h100:2")
    assert len(set(both.node_names)) == both.num_nodes == 22


def test_machines_of_different_sizes_make_no_planes() -> None:
    with pytest.raises(UsageError):
        parse_topology("dgx1v+dgx2")
