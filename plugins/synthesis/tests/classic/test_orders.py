"""Rings are rings: every rank once, and no link twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from collhub_classic.orders import find_disjoint_rings, find_ring_order
from hypothesis import given
from hypothesis import strategies as st

from hub_core import Topology, parse_topology


def test_a_mesh_of_an_odd_number_has_no_ring() -> None:
    # Its neighbours are black and white in turn, as on a chessboard.
    mesh = parse_topology("mesh:3x5")
    assert [ring.tolist() for ring in find_disjoint_rings(mesh, range(15), 16)] == [list(range(15))]


@pytest.mark.parametrize(
    ("topology", "rings"),
    [
        *(("ring:8", 2), ("torus:4x4", 4), ("fc:8", 4), ("fc:7", 6), ("dgx1v", 6)),
        *(("hypercube:3", 2), ("mesh:8x8", 2), ("mesh:5x8", 2)),
    ],
)
def test_rings_share_no_link(topology: str, rings: int) -> None:
    network = parse_topology(topology)
    found = find_disjoint_rings(network, range(network.num_npus), 16)
    assert len(found) >= rings
    _check_rings(network, [ring.tolist() for ring in found])


@given(st.integers(4, 9), st.integers(0, 2**32 - 1))
def test_rings_of_random_networks_share_no_link(ranks: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    source, destination = np.nonzero(generator.random((ranks, ranks)) < 0.5)
    is_link = source != destination
    source, destination = source[is_link], destination[is_link]
    # Routes are asked for only where all are joined.
    source = np.concatenate([source, np.arange(ranks)])
    destination = np.concatenate([destination, np.roll(np.arange(ranks), -1)])
    links = len(source)
    network = Topology(
        "random", ranks, ranks, source, destination, np.full(links, 1e9), np.full(links, 1e-6)
    )
    _check_rings(
        network, [ring.tolist() for ring in find_disjoint_rings(network, range(ranks), 16)]
    )


def _check_rings(network: Topology, rings: list[list[int]]) -> None:
    least = network.bandwidth_bytes_per_s.min()
    capacity: Counter[tuple[int, int]] = Counter()
    columns = (network.source, network.destination, network.bandwidth_bytes_per_s / least)
    for source, destination, rate in zip(*(column.tolist() for column in columns), strict=True):
        capacity[source, destination] += round(rate)
    used: Counter[tuple[int, int]] = Counter()
    for ring in rings:
        assert sorted(ring) == list(range(network.num_npus))
        used.update(zip(ring, [*ring[1:], ring[0]], strict=True))
    assert all(count <= capacity[link] for link, count in used.items())


def test_a_ring_on_a_mesh_goes_by_neighbours_where_one_can() -> None:
    mesh = parse_topology("mesh:4x4")
    order = find_ring_order(mesh, range(16)).tolist()
    links = set(zip(mesh.source.tolist(), mesh.destination.tolist(), strict=True))
    assert set(zip(order, [*order[1:], order[0]], strict=True)) <= links


def test_the_given_order_stays_where_none_is_better() -> None:
    assert find_ring_order(parse_topology("switch:6"), range(6)).tolist() == list(range(6))
