"""Switches store and forward, or are unwound; where messages pass them, schedules take the simulator's time."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.path_network import PathNetwork, contracted
from collhub_tacos.networks.unwinding import unwound
from collhub_tacos.routing.multicast import spread
from collhub_tacos.routing.routes import route_all
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.retiming import retimed
from collhub_tacos.schedules.windows import windows
from hypothesis import given
from hypothesis import strategies as st

from hub_core import (
    Collective,
    CollectiveKind,
    Topology,
    UsageError,
    parse_topology,
    pipeline,
    simulate,
    verify,
)
from hub_core.topology import Links, Occupancy
from hub_core.transfers import Chunks, algorithm_of

KIB = 1 << 10
SWITCHED = ["switch:8", "fat-tree:4", "rail:2x4", "ring:2*fc:4*switch:4", "dragonfly:2,1,1"]


def path_network(text: str) -> PathNetwork:
    network = contracted(parse_topology(text))
    assert isinstance(network, PathNetwork)
    return network


def made(
    kind: CollectiveKind, network: LinkNetwork, occupancy: Occupancy
) -> tuple[LinkSchedule, int]:
    """An all-to-all or an all-gather of 256 KiB a chunk, and the time of its algorithm in the simulator."""
    n = network.num_npus
    collective = Collective(kind, n, n)
    chunks = Chunks.cut(collective, [1])
    times = network.link_times(256 * KIB, occupancy)
    everyone = np.ones(n, np.bool_)
    is_routed = kind is CollectiveKind.ALL_TO_ALL
    schedule = (
        route_all(network, times, chunks.origin, chunks.target)
        if is_routed
        else spread(network, times, chunks.origin, everyone)
    )
    assert np.array_equal(retimed(schedule, times).start, schedule.start)
    algorithm = algorithm_of(collective, chunks, schedule.transfers(times))
    assert verify(algorithm).ok
    time_ns = simulate(
        algorithm, network.topology, n * 256 * KIB, options={"occupancy": str(occupancy)}
    ).time_ns
    assert time_ns is not None
    return schedule, time_ns


@pytest.mark.parametrize("occupancy", list(Occupancy))
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER])
@pytest.mark.parametrize("text", SWITCHED)
def test_simulated_time_is_that_of_the_schedule(
    text: str, kind: CollectiveKind, occupancy: Occupancy
) -> None:
    schedule, time_ns = made(kind, path_network(text), occupancy)
    # Each rank copies its own chunk last, in 1 ns.
    assert 0 <= time_ns - schedule.time_ps // 1000 <= 1


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER])
def test_ports_of_a_switch_are_busy_all_the_time(kind: CollectiveKind) -> None:
    network = path_network("switch:16?bandwidth=50GiB/s&latency=500ns")
    schedule, _ = made(kind, network, Occupancy.ALPHA_BETA)
    # n - 1 messages a port, one step to pass the switch, one in which the first message is alone.
    assert schedule.time_ps == (15 + 2) * int(
        network.link_times(256 * KIB, Occupancy.ALPHA_BETA).busy[0]
    )


def test_pair_that_only_switches_join_is_an_arc_over_its_route() -> None:
    network = path_network("rail:2x2")
    assert (network.num_nodes, network.num_links) == (4, 8)
    # NPU 0 to NPU 3 has to pass NPU 1 or 2, so there is no arc.
    pairs = set(zip(network.source.tolist(), network.destination.tolist(), strict=True))
    assert (0, 1) in pairs
    assert (0, 2) in pairs
    assert (0, 3) not in pairs
    assert set(np.diff(network.paths.indptr).tolist()) == {2}


def test_time_of_an_arc_is_the_sum_of_its_links() -> None:
    network = path_network("switch:4?bandwidth=1GB/s&latency=100ns")
    serialization, alpha_beta = (network.link_times(1000, occupancy) for occupancy in Occupancy)
    assert set(serialization.busy.tolist()) == {1_000_000}
    assert set(alpha_beta.busy.tolist()) == {1_100_000}
    assert set(serialization.arrival.tolist()) == set(alpha_beta.arrival.tolist()) == {2_200_000}


def test_network_without_switches_stays_as_it_is() -> None:
    network = contracted(parse_topology("torus:3x3"))
    assert not isinstance(network, PathNetwork)
    assert network.num_links == 36


@st.composite
def switched_networks(draw: st.DrawFn) -> Topology:
    npus, switches = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    nodes = npus + switches
    pairs = draw(
        st.sets(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), min_size=1)
    )
    ends = np.asarray(sorted((a, b) for a, b in pairs if a != b) or [(0, npus)], np.int64)
    return Links.uniform(ends[:, 0], ends[:, 1], 50e9, 1e-6).topology("random", npus, nodes)


def reached(topology: Topology, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
    """Which NPU reaches which over the given links: bool[NPUs, NPUs]."""
    table = np.eye(topology.num_nodes, dtype=np.bool_)
    table[source, destination] = True
    for _ in range(topology.num_nodes):
        table = table @ table
    return table[: topology.num_npus, : topology.num_npus]


@given(switched_networks())
def test_arcs_reach_what_links_reach(topology: Topology) -> None:
    network = contracted(topology)
    by_links = reached(topology, topology.source, topology.destination)
    assert np.array_equal(reached(topology, network.source, network.destination), by_links)


@given(switched_networks())
def test_unwinding_keeps_who_reaches_whom(topology: Topology) -> None:
    plain = unwound(topology)
    assert plain.num_nodes == plain.num_npus == topology.num_npus
    by_links = reached(topology, topology.source, topology.destination)
    assert np.array_equal(reached(plain, plain.source, plain.destination), by_links)


@pytest.mark.parametrize("degree", [1, 2, 3, 7])
def test_unwound_switch_has_links_to_the_next_neighbours(degree: int) -> None:
    plain = unwound(parse_topology("switch:4?bandwidth=60GB/s&latency=500ns"), degree)
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
    forward = next(link for link in unwound(topology).links() if link.source == 0)
    assert (forward.bandwidth_bytes_per_s, forward.latency_s) == (20e9, 2e-6)


def test_several_planes_are_refused() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    with pytest.raises(UsageError, match="tacos makes algorithms for one plane, not for 2"):
        pipeline.synthesize(collective, parse_topology("fc:2+fc:2"), 1 << 20, name="tacos")


def test_negative_degree_is_refused() -> None:
    with pytest.raises(UsageError, match="a switch cannot be unwound to degree -1"):
        unwound(parse_topology("switch:4"), -1)


def test_link_begins_with_one_message_and_ends_at_its_window() -> None:
    # Ten messages of one link, each 1 long, that take 4: after the first two doublings four are under way.
    turn = np.arange(10, dtype=np.int64)
    found = windows(np.zeros(10, np.int64), turn, turn + 4, np.full(10, 4), 2)
    assert (turn - found).tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 4, 5]


def test_message_waits_for_the_last_to_arrive_of_all_before_its_window() -> None:
    # The first message goes far, the second one does not: nobody may wait for the second one alone.
    row, start = np.zeros(5, np.int64), np.arange(5, dtype=np.int64)
    found = windows(row, start, np.asarray([20, 3, 4, 5, 6]), np.full(5, 2), 4)
    assert (start - found).tolist() == [-1, 0, 0, 0, 0]
