"""Routing of chunks from one origin to one target: valid anywhere, near the bound on tori."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.routing.routes import route_all
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import (
    Collective,
    CollectiveKind,
    InputError,
    Topology,
    parse_topology,
    simulate,
    verify,
)
from hub_core.network import Links, Occupancy
from hub_core.schedules import Chunks, algorithm_of

MIB = 1 << 20
CONSTANTS = "?bandwidth=50GiB/s&latency=500ns"


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """A one-way ring, which keeps it connected, and any other links, with times of their own."""
    n = draw(st.integers(2, 7))
    pairs = sorted(
        draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
        | {(i, (i + 1) % n) for i in range(n)}
    )
    ends = np.asarray([pair for pair in pairs if pair[0] != pair[1]], np.int64)
    rates = draw(
        st.lists(
            st.sampled_from([10e9, 25e9, 50e9]),
            min_size=len(ends),
            max_size=len(ends),
        )
    )
    latencies = draw(
        st.lists(
            st.sampled_from([0.0, 5e-7, 1e-5]),
            min_size=len(ends),
            max_size=len(ends),
        )
    )
    return Links(
        ends[:, 0],
        ends[:, 1],
        np.asarray(rates),
        np.asarray(latencies),
    ).topology("random", n, n)


def all_pairs(npus: int) -> tuple[np.ndarray, np.ndarray]:
    origin, target = np.divmod(np.arange(npus * npus), npus)
    return origin, target


def route(
    topology: Topology, seed: int = 0, occupancy: Occupancy = Occupancy.ALPHA_BETA
) -> tuple[LinkSchedule, LinkTimes]:
    network = LinkNetwork.of(topology)
    times = network.link_times(MIB, occupancy)
    return route_all(network, times, *all_pairs(topology.num_npus), seed), times


@settings(max_examples=60)
@given(networks(), st.sampled_from(list(Occupancy)), st.data())
def test_every_chunk_reaches_its_target_and_no_link_does_two_things_at_once(
    topology: Topology, occupancy: Occupancy, data: st.DataObject
) -> None:
    npu = st.integers(0, topology.num_npus - 1)
    ends = np.asarray(data.draw(st.lists(st.tuples(npu, npu), min_size=1, max_size=20)), np.int64)
    network = LinkNetwork.of(topology)
    times = network.link_times(MIB, occupancy)
    schedule = route_all(
        network,
        times,
        ends[:, 0],
        ends[:, 1],
        data.draw(st.integers(0, 3)),
    )
    wanted = (np.arange(len(ends)), ends[:, 1])
    assert replay(schedule, times, ends[:, 0], wanted) == schedule.time_ps


@given(networks())
def test_routes_have_no_detour_that_comes_back(topology: Topology) -> None:
    schedule, _ = route(topology)
    visited = np.stack([schedule.chunk, schedule.network.destination[schedule.link]])
    assert len(np.unique(visited, axis=1).T) == len(schedule)


@given(networks())
def test_time_scales_with_the_links(topology: Topology) -> None:
    network = LinkNetwork.of(topology)
    times = network.link_times(MIB, Occupancy.SERIALIZATION)
    slower = LinkTimes(4 * times.busy, 4 * times.arrival)
    pairs = all_pairs(topology.num_npus)
    assert (
        route_all(network, slower, *pairs).time_ps == 4 * route_all(network, times, *pairs).time_ps
    )


@pytest.mark.parametrize("text", ["torus:8x8", "torus:4x4x4", "torus:5x7", "mesh:6x6"])
def test_all_to_all_is_within_a_step_or_three_percent_of_the_bound(text: str) -> None:
    topology = parse_topology(text + CONSTANTS)
    n = topology.num_npus
    schedule, times = route(topology)
    bounds = compute_lower_bounds_ps(
        Collective(CollectiveKind.ALL_TO_ALL, n, n),
        schedule.network,
        np.arange(n),
        MIB,
        Occupancy.ALPHA_BETA,
    )
    assert max(bounds.values()) <= schedule.time_ps <= 1.03 * max(bounds.values()) + times.busy[0]


@pytest.mark.slow
def test_all_to_all_of_512_npus_is_within_one_step_of_the_bound() -> None:
    schedule, times = route(parse_topology("torus:8x8x8" + CONSTANTS))
    # 512 x 512 pairs, 6 hops on average, 3072 links.
    assert 512 * times.busy[0] <= schedule.time_ps <= 513 * times.busy[0]


@pytest.mark.parametrize("kind", [CollectiveKind.SCATTER, CollectiveKind.GATHER])
def test_root_is_busy_all_the_time(kind: CollectiveKind) -> None:
    topology = parse_topology("torus:4x4" + CONSTANTS)
    collective = Collective(kind, 16, 16, root=3)
    chunks = Chunks.cut(collective, [1])
    network = LinkNetwork.of(topology)
    times = network.link_times(MIB, Occupancy.ALPHA_BETA)
    # 15 chunks over the four links of the root.
    assert route_all(network, times, chunks.origin, chunks.target).time_ps == 4 * times.busy[0]


def test_same_seed_gives_the_same_schedule() -> None:
    topology = parse_topology("mesh:3x4" + CONSTANTS)
    one, other = route(topology, seed=5)[0], route(topology, seed=5)[0]
    assert all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("chunk", "link", "start", "finish")
    )


@pytest.mark.parametrize("occupancy", list(Occupancy))
@pytest.mark.parametrize(
    "text", ["torus:4x4", "dgx1v", "mesh:3x4?bandwidth=16GiB/s,73GiB/s&latency=1.5us"]
)
def test_algorithm_is_correct_and_takes_the_time_of_the_schedule(
    text: str, occupancy: Occupancy
) -> None:
    topology = parse_topology(text)
    n = topology.num_npus
    schedule, times = route(topology, occupancy=occupancy)
    collective = Collective(CollectiveKind.ALL_TO_ALL, n, n)
    algorithm = algorithm_of(collective, Chunks.cut(collective, [1]), schedule.transfers(times))
    assert verify(algorithm).ok
    time_ns = simulate(algorithm, topology, n * MIB, options={"occupancy": str(occupancy)}).time_ns
    # The simulator truncates the time of every message; a chain of messages is at most as long as
    # the busiest link's.
    assert time_ns is not None
    assert 0 <= schedule.time_ps / 1000 - time_ns <= np.bincount(schedule.link).max() + n


def test_chunk_that_is_where_it_should_be_is_not_sent() -> None:
    network = LinkNetwork.of(parse_topology("ring:3"))
    here = np.asarray([0, 1, 2])
    assert len(route_all(network, network.link_times(MIB, Occupancy.ALPHA_BETA), here, here)) == 0


def test_target_that_cannot_be_reached_is_named_with_the_cut() -> None:
    ends = np.asarray([0, 1, 2, 3], np.int64)
    network = LinkNetwork.of(Links.uniform(ends, ends ^ 1, 50e9, 0.0).topology("islands", 4, 4))
    times = network.link_times(MIB, Occupancy.ALPHA_BETA)
    with pytest.raises(
        InputError, match="topology islands: NPU 1 cannot reach NPU 2: no link leaves NPUs 0,1"
    ):
        route_all(network, times, np.asarray([0, 1]), np.asarray([1, 2]))
    assert len(route_all(network, times, np.asarray([0, 3]), np.asarray([1, 2]))) == 2
