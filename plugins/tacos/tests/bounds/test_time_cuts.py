"""Cuts in time: known by hand, below every schedule, and countable again."""

from __future__ import annotations

import numpy as np
import pytest
import tacos_networks
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import CollectiveDemand
from collhub_tacos.spreading.heterogeneous import find_all_gather
from collhub_tacos.synthesize import compute_exact_times
from collhub_tacos.time_cuts import TimeCut, evacuation_bound, find_tightest_cut
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.model import STANDARD_KINDS
from hub_core.network import Occupancy, Topology

KINDS = list(STANDARD_KINDS)
MOST_CELLS = 1 << 22


def _collective(kind: CollectiveKind, ranks: int, pieces: int = 1) -> Collective:
    root = 0 if kind.traits.is_rooted else None
    return Collective(kind, ranks, pieces * kind.traits.parts(ranks), root=root)


def _cut(
    topology: Topology,
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    pieces: int = 1,
    occupancy: Occupancy = Occupancy.ALPHA_BETA,
) -> tuple[TimeCut, LinkNetwork, LinkTimes]:
    network = LinkNetwork.of(topology)
    times = compute_exact_times(network, (1 << 20) // pieces, occupancy)
    collective = _collective(kind, network.num_npus, pieces)
    return (
        find_tightest_cut(collective, network, times, np.arange(network.num_npus)),
        network,
        times,
    )


# By hand. Out of three groups of eight, 24 chunks over three links of 20.53125 us, the last one on
# to who is 5.1828125 us away. Out of eight groups of four, 32 over eight of 40.0625 us, of which
# the last ones come to four neighbours, who share them over links of 10.065625 us, two for each.
@pytest.mark.parametrize(
    ("topology", "time_ps"),
    [
        (tacos_networks.crowds(4, 8, 200.0, 50.0), 8 * 20_531_250 + 5_182_812),
        (tacos_networks.crowds(9, 4, 100.0, 25.0), 4 * 40_062_500 + 2 * 10_065_625),
    ],
    ids=["clusters", "dragonfly"],
)
def test_what_narrow_links_let_through_must_still_go_on(topology, time_ps):
    assert _cut(topology)[0].time_ps == time_ps


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15)
@given(draw=st.integers(0, 2**16), nodes=st.integers(2, 8), pieces=st.integers(1, 3))
def test_fewer_messages_cross_than_must(kind, draw, nodes, pieces):
    for occupancy in Occupancy:
        cut, network, times = _cut(tacos_networks.drawn(draw, nodes), kind, pieces, occupancy)
        collective = _collective(kind, nodes, pieces)
        demand = CollectiveDemand.of(collective, network, np.arange(nodes))
        assert cut.time_ps > 0
        assert cut.count_possible(network, times) < cut.count_needed(demand)


@settings(deadline=None, max_examples=40)
@given(draw=st.integers(0, 2**16), nodes=st.integers(2, 8), pieces=st.integers(1, 3))
def test_no_schedule_ends_before(draw, nodes, pieces):
    for occupancy in Occupancy:
        topology = tacos_networks.drawn(draw, nodes)
        cut, network, times = _cut(topology, CollectiveKind.ALL_GATHER, pieces, occupancy)
        origin = np.repeat(np.arange(nodes), pieces)
        made = find_all_gather(network, times, origin, seeds=3, threads=1)
        assert cut.time_ps <= made.result.time_ps


@pytest.mark.parametrize("text", ["mesh:4x4", "torus:3x4", "hypercube:3", "dgx1v"])
@pytest.mark.parametrize("arrival_ps", [1000, 3000, 3200])
def test_evacuations_are_cuts_in_time(text, arrival_ps):
    network = LinkNetwork.of(parse_topology(text))
    busy = np.full(network.num_links, 1000)
    times = LinkTimes(busy, np.full(network.num_links, arrival_ps))
    npus = np.arange(network.num_npus)
    bound = evacuation_bound(network, times, npus, max_cells=MOST_CELLS)
    demand = CollectiveDemand.of(_collective(CollectiveKind.ALL_GATHER, len(npus)), network, npus)
    cut = bound.time_cut(times)
    assert cut.time_ps == bound.time_ps
    assert cut.count_possible(network, times) < cut.count_needed(demand)
    # What looks at all cuts in whole steps is no worse than what looks at some.
    collective = _collective(CollectiveKind.ALL_GATHER, len(npus))
    is_whole = arrival_ps % 1000 == 0
    assert (
        not is_whole or find_tightest_cut(collective, network, times, npus).time_ps <= bound.time_ps
    )


def test_a_reduction_is_bounded_as_its_reverse():
    topology = tacos_networks.drawn(5, 7)
    turned = parse_topology("ring:5")
    for one in (topology, turned):
        forwards, _, _ = _cut(one, CollectiveKind.BROADCAST)
        assert forwards.reversed.time_ps == forwards.time_ps
        assert np.array_equal(forwards.reversed.reversed.since_ps, forwards.since_ps)


def test_times_of_certificates_are_rounded_down():
    # 1000 bytes at 33 GB/s take 30303.03 ps.
    network = LinkNetwork.of(parse_topology("ring:3?bandwidth=33GB/s&latency=100ns"))
    for occupancy, busy in ((Occupancy.SERIALIZATION, 30_303), (Occupancy.ALPHA_BETA, 130_303)):
        times = compute_exact_times(network, 1000, occupancy)
        assert set(times.busy.tolist()) == {busy}
        assert set(times.arrival.tolist()) == {130_303}
