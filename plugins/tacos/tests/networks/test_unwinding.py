"""Unwound switches: links to the next neighbours, and the same NPUs reach one another."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import unwind_switches
from hypothesis import given
from switched_networks import reached, switched_networks

from hub_core import Topology, UsageError, parse_topology
from hub_core.network import Links


@given(switched_networks())
def test_unwinding_keeps_who_reaches_whom(topology: Topology) -> None:
    plain = unwind_switches(topology)
    assert plain.num_nodes == plain.num_npus == topology.num_npus
    by_links = reached(topology, topology.source, topology.destination)
    assert np.array_equal(reached(plain, plain.source, plain.destination), by_links)


@pytest.mark.parametrize("degree", [1, 2, 3, 7])
def test_unwound_switch_has_links_to_the_next_neighbours(degree: int) -> None:
    plain = unwind_switches(parse_topology("switch:4?bandwidth=60GB/s&latency=500ns"), degree)
    parts = min(degree, 3)
    found = [(link.source, link.destination) for link in plain.links()]
    assert sorted(found) == sorted(
        (k, (k + step) % 4) for k in range(4) for step in range(1, parts + 1)
    )
    assert set(plain.bandwidth_bytes_per_s.tolist()) == {60e9 / parts}
    assert set(plain.latency_s.tolist()) == {1e-6}


def test_links_of_two_switches_between_the_same_npus_add_up() -> None:
    ends = np.asarray([(0, 2), (2, 1), (0, 3), (3, 1), (1, 0)], np.int64)
    topology = Links.uniform(ends[:, 0], ends[:, 1], 10e9, 1e-6).topology("two paths", 2, 4)
    forward = next(link for link in unwind_switches(topology).links() if link.source == 0)
    assert (forward.bandwidth_bytes_per_s, forward.latency_s) == (20e9, 2e-6)


def test_negative_degree_is_refused() -> None:
    with pytest.raises(UsageError, match="a switch cannot be unwound to degree -1"):
        unwind_switches(parse_topology("switch:4"), -1)
