"""Translations of networks that look alike from every node, and unwound switches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from collhub_tacos.link_network import LinkNetwork, unwind_switches
from collhub_tacos.symmetry import Translations
from hypothesis import given
from switched_networks import reached, switched_networks

from hub_core import Topology, UsageError, parse_topology
from hub_core.network import Links, Occupancy

MIB = 1 << 20


def each(network: LinkNetwork, chunks: int) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(network.num_npus), chunks)


def test_shapes_are_found_where_none_is_stated() -> None:
    torus = parse_topology("torus:5x3x5")
    columns = (torus.source, torus.destination, torus.bandwidth_bytes_per_s, torus.latency_s)
    network = LinkNetwork.of(Links(*columns).topology("unnamed", 75, 75))
    found = Translations.of(network, each(network, 1))
    assert found is not None
    assert found.moduli == (5, 3, 5)


def test_links_of_different_times_must_be_alike_everywhere() -> None:
    torus = parse_topology("ring:6")
    rates = np.where(np.arange(torus.num_links) == 0, 10e9, 50e9)
    network = LinkNetwork.of(
        Links(torus.source, torus.destination, rates, torus.latency_s).topology(
            "one slow link", 6, 6
        )
    )
    assert Translations.of(network, each(network, 1)) is not None
    assert (
        Translations.of(network, each(network, 1), network.link_times(MIB, Occupancy.ALPHA_BETA))
        is None
    )


@pytest.mark.parametrize("text", ["mesh:3x3", "line:4", "switch:4", "ring:1"])
def test_other_networks_have_no_translations(text: str) -> None:
    network = LinkNetwork.of(parse_topology(text))
    assert Translations.of(network, each(network, 1)) is None


def test_unequal_shares_are_not_moved() -> None:
    network = LinkNetwork.of(parse_topology("ring:4"))
    assert Translations.of(network, np.asarray([0, 0, 1, 2, 3])) is None


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
