"""Switches store and forward; where messages pass them, schedules take the simulator's time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork, PathNetwork, contract_switches
from collhub_tacos.routing.routes import route_all, spread
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.retiming import retime
from collhub_tacos.symmetry import transpose_network
from hypothesis import given
from switched_networks import reached, switched_networks

import hub_core
from hub_core import (
    Collective,
    CollectiveKind,
    Topology,
    parse_topology,
    simulate,
    verify,
)
from hub_core.model import InputError
from hub_core.network import Occupancy
from hub_core.schedules import Chunks, algorithm_of

KIB = 1 << 10
SWITCHED = ["switch:8", "fat-tree:4", "rail:2x4", "ring:2*fc:4*switch:4", "dragonfly:2,1,1"]


def path_network(text: str) -> PathNetwork:
    network = contract_switches(parse_topology(text))
    assert isinstance(network, PathNetwork)
    return network


def made(
    kind: CollectiveKind, network: LinkNetwork, occupancy: Occupancy
) -> tuple[LinkSchedule, int]:
    """An all-to-all or an all-gather of 256 KiB a chunk, and its time in the simulator, in ns."""
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
    assert np.array_equal(retime(schedule, times).start, schedule.start)
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


def parallel_cables() -> Topology:
    """Return two leaf switches (4, 5) of two NPUs each, joined by two parallel links each way."""
    ends = [(0, 4), (1, 4), (2, 5), (3, 5)]
    links = [*ends, *((switch, npu) for npu, switch in ends), *[(4, 5), (5, 4)] * 2]
    source, destination = np.asarray(links, np.int64).T
    rate, latency_s = np.full(len(links), 50e9), np.full(len(links), 500e-9)
    return Topology("cables", 4, 6, source, destination, rate, latency_s)


def test_arcs_use_the_parallel_links_over_which_a_switch_spreads_routes() -> None:
    """A parallel link that the network lacks would be replaced by another one."""
    topology = parallel_cables()
    for network in (contract_switches(topology), contract_switches(_reversed(topology))):
        assert isinstance(network, PathNetwork)
        routes = network.topology.routes(network.source, network.destination)
        rows = network.links.row[network.paths.links]
        assert rows.tolist() == routes.links.tolist()
        back = transpose_network(transpose_network(network))
        assert isinstance(back, PathNetwork)
        assert back.links.row[back.paths.links].tolist() == routes.links.tolist()


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.REDUCE_SCATTER])
def test_parallel_links_of_switches_are_counted_in_times_and_bounds(kind: CollectiveKind) -> None:
    topology, size = parallel_cables(), 1 << 20
    result = hub_core.synthesize(Collective(kind, 4, 4), topology, size, name="tacos")
    assert simulate(result.algorithm, topology, size).time_ns == result.time_ns
    bound = hub_core.network.lower_bound_ns(result.algorithm.collective, topology, size)
    # Four messages each way between the leaves, of 1/4 of the data, on two links.
    assert result.bounds_ns["fluid"] == pytest.approx(bound, rel=0.1)
    assert not result.diagnostics


def _reversed(topology: Topology) -> Topology:
    return replace(topology, source=topology.destination, destination=topology.source)


def test_time_of_an_arc_is_the_sum_of_its_links() -> None:
    network = path_network("switch:4?bandwidth=1GB/s&latency=100ns")
    serialization, alpha_beta = (network.link_times(1000, occupancy) for occupancy in Occupancy)
    assert set(serialization.busy.tolist()) == {1_000_000}
    assert set(alpha_beta.busy.tolist()) == {1_100_000}
    assert set(serialization.arrival.tolist()) == set(alpha_beta.arrival.tolist()) == {2_200_000}


def test_network_without_switches_stays_as_it_is() -> None:
    network = contract_switches(parse_topology("torus:3x3"))
    assert not isinstance(network, PathNetwork)
    assert network.num_links == 36


@given(switched_networks())
def test_arcs_reach_what_links_reach(topology: Topology) -> None:
    network = contract_switches(topology)
    by_links = reached(topology, topology.source, topology.destination)
    assert np.array_equal(reached(topology, network.source, network.destination), by_links)


@pytest.mark.parametrize("chosen", ["bandwidth=1B/s", "latency=1000000s"])
def test_times_beyond_the_range_of_picoseconds_are_refused(chosen: str) -> None:
    with pytest.raises(InputError, match="times are counted up to 50000 s"):
        path_network(f"switch:4?{chosen}").link_times(1 << 40, Occupancy.SERIALIZATION)
