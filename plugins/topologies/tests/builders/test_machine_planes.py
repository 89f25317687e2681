"""Machines and networks side by side on the same NPUs."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core import Topology, UsageError, parse_topology

BOTH = "dgx1v+dgx1-pcie"
COLUMNS = ("source", "destination", "bandwidth_bytes_per_s", "latency_s", "plane")


def same(one: Topology, other: Topology) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)


def test_parts_joined_by_plus_are_planes_with_their_switches_in_order() -> None:
    both = parse_topology("switch:4+dgx-a100?npus=0-3+fc:4?bandwidth=1e+9B/s")
    assert (both.num_planes, both.num_npus, both.num_nodes) == (3, 4, 6)
    assert np.unique(both.destination[both.plane == 1]).tolist() == [0, 1, 2, 3, 5]
    assert both.bandwidth_bytes_per_s[both.plane == 2].tolist() == [1e9] * 12


def test_a_plane_alone_is_the_part_it_came_from() -> None:
    both = parse_topology(BOTH)
    for plane, part in enumerate(("dgx1v", "dgx1-pcie")):
        alone = both.on_plane(plane)
        assert same(alone, parse_topology(part))
        assert alone.num_nodes == parse_topology(part).num_nodes


def test_names_of_switches_stay_distinct() -> None:
    both = parse_topology("dgx-h100:2+dgx-h100:2")
    assert len(set(both.node_names)) == both.num_nodes == 22


def test_the_channel_chooses_the_plane_of_a_route() -> None:
    both, pcie = parse_topology(BOTH), parse_topology("dgx1-pcie")
    routes = both.routes(np.zeros(4, np.int64), np.full(4, 5), np.arange(4))
    assert np.diff(routes.indptr).tolist() == [2, 5, 2, 5]
    expected = pcie.routes(np.zeros(1, np.int64), np.full(1, 5)).links
    assert (routes.links[2:7] - 32).tolist() == expected.tolist()
    default = both.routes(np.zeros(1, np.int64), np.full(1, 5))
    assert default.links.tolist() == routes.links[:2].tolist()


def test_a_subset_keeps_planes_and_closes_up_where_one_is_gone() -> None:
    both = parse_topology(BOTH)
    part = both.subset([1, 4, 5])
    assert part.num_planes == 2
    assert same(part, parse_topology(part.name))
    assert both.subset([0, 5]).num_planes == 1
    assert same(both.subset([0, 5]), parse_topology("dgx1-pcie").subset([0, 5]))


def test_machines_of_different_sizes_make_no_planes() -> None:
    with pytest.raises(UsageError):
        parse_topology("dgx1v+dgx2")
