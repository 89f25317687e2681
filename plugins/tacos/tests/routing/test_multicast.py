"""Multicast: members get every chunk once, others only what they pass on; broadcasts pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.routing.routes import spread
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import Collective, CollectiveKind, InputError, Topology, parse_topology, verify
from hub_core.network import Links, Occupancy
from hub_core.schedules import Chunks, algorithm_of

MIB = 1 << 20
CONSTANTS = "?bandwidth=50GiB/s&latency=500ns"


def steps(text: str, origin: list[int], members: list[int], seeds: int = 1) -> float:
    """Time in messages of one link, best of some seeds."""
    network = LinkNetwork.of(parse_topology(text + CONSTANTS))
    times = network.link_times(MIB, Occupancy.ALPHA_BETA)
    needed = np.isin(np.arange(network.num_nodes), members)
    found = [
        spread(network, times, np.asarray(origin), needed, seed).time_ps for seed in range(seeds)
    ]
    return min(found) / int(times.busy[0])


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    n = draw(st.integers(2, 8))
    pairs = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=16))
    ends = np.asarray(
        sorted({(a, b) for a, b in pairs if a != b} | {(i, (i + 1) % n) for i in range(n)}),
        np.int64,
    )
    rates = draw(
        st.lists(
            st.sampled_from([10e9, 50e9]),
            min_size=len(ends),
            max_size=len(ends),
        )
    )
    return Links(
        ends[:, 0],
        ends[:, 1],
        np.asarray(rates),
        np.full(len(ends), 1e-6),
    ).topology("random", n, n)


@settings(max_examples=60)
@given(networks(), st.sampled_from(list(Occupancy)), st.data())
def test_members_get_every_chunk_once_and_relays_what_they_pass_on(
    topology: Topology, occupancy: Occupancy, data: st.DataObject
) -> None:
    n = topology.num_npus
    members = np.asarray(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    origin = np.asarray(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8)))
    network = LinkNetwork.of(topology)
    times = network.link_times(MIB, occupancy)
    schedule = spread(
        network, times, origin, np.isin(np.arange(n), members), data.draw(st.integers(0, 2))
    )
    wanted = np.repeat(np.arange(len(origin)), len(members)), np.tile(members, len(origin))
    assert replay(schedule, times, origin, wanted) == schedule.time_ps
    assert passed_on(schedule) >= relayed(schedule, members)


def passed_on(schedule: LinkSchedule) -> set[tuple[int, int]]:
    source = schedule.network.source[schedule.link]
    return set(zip(schedule.chunk.tolist(), source.tolist(), strict=True))


def relayed(schedule: LinkSchedule, members: np.ndarray) -> set[tuple[int, int]]:
    destination = schedule.network.destination[schedule.link]
    outside = ~np.isin(destination, members)
    return set(zip(schedule.chunk[outside].tolist(), destination[outside].tolist(), strict=True))


def test_all_gather_of_a_mesh_is_within_a_step_of_the_bound() -> None:
    # The corner gets 63 chunks over two links.
    assert steps("mesh:8x8", list(range(64)), list(range(64))) <= 33


def test_broadcast_is_pipelined() -> None:
    # 32 chunks leave the corner over two links, the last one has 14 hops to go: at least 29 steps.
    assert steps("mesh:8x8", [0] * 32, list(range(64)), seeds=3) <= 35
    # Both ways round a ring: 16 chunks each, the last one has at most 7 hops to go.
    assert steps("ring:8", [0] * 32, list(range(8)), seeds=3) <= 22


def test_group_uses_links_of_others() -> None:
    # Opposite corners of a square: without the others they would have no link at all.
    assert steps("mesh:2x2", [0, 0, 3, 3], [0, 3]) == 2


@pytest.mark.parametrize("occupancy", list(Occupancy))
def test_group_all_gather_through_relays_is_correct(occupancy: Occupancy) -> None:
    topology, npus = parse_topology("mesh:3x3"), (8, 0, 2)
    collective = Collective(CollectiveKind.ALL_GATHER, 3, 6)
    chunks = Chunks.cut(collective, [1, 1])
    network = LinkNetwork.of(topology)
    times = network.link_times(MIB, occupancy)
    schedule = spread(network, times, np.asarray(npus)[chunks.origin], np.isin(np.arange(9), npus))
    algorithm = algorithm_of(collective, chunks, schedule.transfers(times), npus=npus, num_npus=9)
    assert verify(algorithm).ok


def test_members_in_one_part_of_a_network_in_pieces_are_enough() -> None:
    ends = np.asarray([0, 1, 2, 3], np.int64)
    network = LinkNetwork.of(Links.uniform(ends, ends ^ 1, 50e9, 0.0).topology("islands", 4, 4))
    times = network.link_times(MIB, Occupancy.ALPHA_BETA)
    assert (
        len(spread(network, times, np.asarray([2, 3]), np.asarray([False, False, True, True]))) == 2
    )
    with pytest.raises(
        InputError, match="topology islands: NPU 2 cannot reach NPU 0: no link leaves NPUs 2,3"
    ):
        spread(network, times, np.asarray([2]), np.asarray([True, False, True, True]))
