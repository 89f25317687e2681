"""Failed and slow links: texts, errors, and failures that the symmetry of a network makes equal."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hub_core import parse_topology, read_topology
from hub_core.model import UsageError
from hub_core.network import (
    LinkChanges,
    Topology,
    find_separation,
    group_failures,
    list_failures,
    remove_rows,
    split_link_changes,
)


def links_of(topology: Topology) -> set[tuple[int, int]]:
    return {(link.source, link.destination) for link in topology.links()}


def test_a_failure_removes_both_directions_or_one() -> None:
    ring = parse_topology("ring:4")
    assert links_of(ring) - links_of(parse_topology("ring:4?without=0-1")) == {(0, 1), (1, 0)}
    assert links_of(ring) - links_of(parse_topology("ring:4?without=0->1")) == {(0, 1)}


def test_a_slow_link_keeps_a_fraction_of_its_bandwidth() -> None:
    slow = parse_topology("ring:4?bandwidth=8GB/s&degrade=0->1=0.5,0-1=0.5")
    rates = {(link.source, link.destination): link.bandwidth_bytes_per_s for link in slow.links()}
    assert (rates[0, 1], rates[1, 0], rates[1, 2]) == (2e9, 4e9, 8e9)


@pytest.mark.needs_plugins
def test_changes_apply_to_all_planes_and_keep_the_text_as_name() -> None:
    text = "dgx1v+dgx1-pcie?without=0-1"
    network = read_topology(text)
    assert (network.name, network.num_planes) == (text, 2)
    assert (0, 1) not in links_of(network)


def test_numbers_are_those_after_a_selection() -> None:
    part = parse_topology("fully-connected:4?npus=1-3&without=0-1")
    assert (part.num_npus, links_of(part)) == (3, {(0, 2), (2, 0), (1, 2), (2, 1)})


def test_texts_of_changes_can_be_split_and_joined() -> None:
    changes = LinkChanges(("0-1", "2->3"), ("4-5=0.5",))
    text = changes.append_to("ring:8?latency=1us")
    assert text == "ring:8?latency=1us&without=0-1,2->3&degrade=4-5=0.5"
    assert split_link_changes(text) == ("ring:8?latency=1us", changes)
    assert split_link_changes("ring:8") == ("ring:8", LinkChanges())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            "without=0-1,2-3",
            "is not connected without it: 0 does not reach 1 (separated NPUs 1,2); restore 0-1",
        ),
        ("without=0->1,2->1", "0 does not reach 1 (separated NPU 1); restore 0->1"),
        ("without=0->1,0->3,1->0,3->0", "0 does not reach 1 (separated NPU 0); restore 0-1"),
        ("without=1->0,1->2", "1 does not reach 0 (separated NPU 1); restore 1->2"),
        ("without=0-2", "--without-link 0-2: ring:4 has no such link"),
        ("without=0-9", "names no two nodes of ring:4"),
        ("degrade=0-1=2", "the fraction of the bandwidth is not above 0 and at most 1"),
        ("degrade=0-1", "the fraction of the bandwidth is not above 0 and at most 1"),
        ("degrade=0-2=0.5", "--degrade 0-2: ring:4 has no such link"),
    ],
)
def test_wrong_changes_are_one_line(changes: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_topology(f"ring:4?{changes}")
    assert message in str(caught.value)


def test_network_with_the_links_to_restore_is_connected() -> None:
    """In both directions, for every pair of failed links of a line and a ring."""
    for text in ("line:4", "ring:4"):
        network = parse_topology(text)
        pairs = list(zip(network.source.tolist(), network.destination.tolist(), strict=True))
        for first, second in itertools.combinations(range(network.num_links), 2):
            fails = np.isin(np.arange(network.num_links), [first, second])
            separation = find_separation(network, fails)
            if separation is not None:
                restored = [pair in separation.links_to_restore for pair in pairs]
                assert find_separation(network, fails & ~np.asarray(restored)) is None


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("ring:6", [6]),
        ("ring:6?degrade=0-1=0.5", [1, 2, 2, 1]),
        ("line:5", [2, 2]),
        ("mesh:3x3", [8, 4]),
        pytest.param("hypercube:3", [12], marks=pytest.mark.needs_plugins),
        ("fully-connected:5", [10]),
        pytest.param("rail:2x4", [8, 8], marks=pytest.mark.needs_plugins),
        pytest.param("dgx1v", [4, 2, 4, 2, 2, 2], marks=pytest.mark.needs_plugins),
        # Every node has degree 3, but only some links are on a cycle of three links.
        ("frucht", [1] * 18),
    ],
)
def test_equal_failures_are_those_of_an_automorphism(text: str, sizes: list[int]) -> None:
    network = _frucht() if text == "frucht" else parse_topology(text)
    groups = group_failures(network, list_failures(network))
    assert [group.num_equal for group in groups] == sizes


def test_links_of_unequal_traffic_are_not_equal() -> None:
    ring = parse_topology("ring:4")
    bytes_per_link = np.where(ring.source == 0, 7, 3).astype(np.int64)
    groups = group_failures(ring, list_failures(ring), [bytes_per_link])
    assert [group.num_equal for group in groups] == [2, 2]


@pytest.mark.needs_plugins
def test_equal_failures_leave_networks_with_equal_distances() -> None:
    network = parse_topology("dragonfly:2,1,1")
    failures = list_failures(network)
    groups = group_failures(network, failures)
    assert sum(group.num_equal for group in groups) == len(failures)
    # The sorted table of distances is the same for all automorphic images.
    for first, other in itertools.combinations(groups, 2):
        assert _distances(network, first.fails) != _distances(network, other.fails)


def _distances(network: Topology, fails: np.ndarray) -> list[list[int]]:
    arcs = remove_rows(network, fails).arcs()
    hops = arcs.hops(np.arange(network.num_npus))
    return sorted(sorted(row[: network.num_npus].tolist()) for row in hops)


def _frucht() -> Topology:
    """Return the Frucht graph: 3-regular, and the identity is its only automorphism."""
    edges = [
        (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 0), (0, 7), (1, 7), (2, 8), (3, 9),
        (4, 9), (5, 10), (6, 10), (7, 11), (8, 11), (8, 9), (10, 11),
    ]  # fmt: skip
    both = np.asarray(edges + [(b, a) for a, b in edges], np.int64)
    return Topology("frucht", 12, 12, both[:, 0], both[:, 1], np.full(36, 1e9), np.full(36, 1e-6))
