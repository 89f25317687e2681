"""One node's part moved to all: valid on what looks alike, faster than published schedules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.symmetric import all_gather, find_all_gather
from collhub_tacos.symmetry import Translations
from hypothesis import given, settings
from hypothesis import strategies as st
from tacos_networks import released_cases, ring_full_switch

from hub_core import InputError, Topology, parse_topology
from hub_core.network import Links, Occupancy

MIB = 1 << 20

RELEASED = released_cases()
# In us, the best known of any sort: the time of TACOS v1.3.0 that no schedule can have, its causal
# one, matching with take-over and 200 seeds; then the largest known bound, by cuts between boards.
PUBLISHED = [
    ("3D-RFS 2x4x4, 1", 129.95, 119.18),
    ("3D-RFS 2x4x8, 1", 295.59, 208.57),
    ("3D-RFS 2x4x16, 1", 626.74, 420.65),
    ("3D-RFS 2x4x16 g=3, 1", 590.94, 417.15),
    ("3D-RFS 2x4x4, 4", 125.97, 109.53),
    ("3D-RFS 2x4x8, 4", 260.92, 220.24),
    ("3D-RFS 2x4x16, 4", 536.3, 445.97),
    ("3D-RFS 2x4x16 g=3, 4", 445.98, 439.30),
]


def each(network: LinkNetwork, chunks: int) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(network.num_npus), chunks)


def setting(
    topology: Topology, chunks: int, occupancy: Occupancy
) -> tuple[LinkNetwork, LinkTimes, npt.NDArray[np.int64]]:
    network = LinkNetwork.of(topology)
    return network, network.link_times(MIB // chunks, occupancy), each(network, chunks)


def moved(
    network: LinkNetwork, times: LinkTimes, origin: npt.NDArray[np.int64], seeds: int = 20
) -> int:
    """The time after replay."""
    translations = Translations.of(network, origin, times)
    assert translations is not None
    return replay(
        find_all_gather(network, translations, times, origin, seeds).result, times, origin
    )


@pytest.mark.parametrize(("case", "published_us", "bound_us"), PUBLISHED)
def test_ring_full_switch_networks_beat_what_is_published(
    case: str, published_us: float, bound_us: float
) -> None:
    released = RELEASED[case]
    time_ps = moved(*setting(released.topology, released.chunks, Occupancy.ALPHA_BETA))
    assert bound_us < time_ps / 1e6 < published_us


@pytest.mark.parametrize(
    ("text", "steps"),
    [("torus:8x8", 16), ("torus:4x4x4", 11), ("hypercube:5", 7), ("ring:9", 4), ("fc:6", 1)],
)
def test_equal_links_take_the_steps_of_the_bound(text: str, steps: int) -> None:
    network = LinkNetwork.of(parse_topology(text))
    times = LinkTimes(np.full(network.num_links, 10), np.full(network.num_links, 10))
    assert moved(network, times, each(network, 1)) == steps * 10


def test_links_that_are_free_before_the_arrival_lose_no_more_than_one_latency() -> None:
    network, times, origin = setting(
        parse_topology("torus:8x8?bandwidth=50GiB/s&latency=500ns"), 1, Occupancy.SERIALIZATION
    )
    bound = 15 * int(times.busy[0]) + int(times.arrival[0])
    assert bound <= moved(network, times, origin) <= bound + 500_000


@st.composite
def circulants(draw: st.DrawFn) -> tuple[Topology, int]:
    """Links from every node to those some steps further, alike for each number of steps."""
    n = draw(st.integers(2, 12))
    steps = sorted({1, *draw(st.lists(st.integers(1, n - 1), max_size=3))})
    rates = [draw(st.sampled_from([10e9, 25e9, 40e9])) for _ in steps]
    latencies = [draw(st.sampled_from([0.0, 1e-7, 5e-6])) for _ in steps]
    node = np.arange(n)
    columns = [
        Links.uniform(node, (node + step) % n, *pair)
        for step, *pair in zip(steps, rates, latencies, strict=True)
    ]
    return Links.joined(columns).topology("circulant", n, n), draw(st.integers(1, 3))


@given(circulants(), st.sampled_from(list(Occupancy)), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_circulant_network_gets_a_valid_schedule(
    drawn: tuple[Topology, int], occupancy: Occupancy, seed: int
) -> None:
    network, times, origin = setting(*drawn, occupancy)
    translations = Translations.of(network, origin, times)
    assert translations is not None
    schedule = all_gather(network, translations, times, origin, seed)
    assert replay(schedule, times, origin) == schedule.time_ps


@given(st.permutations(range(8)))
@settings(max_examples=10, deadline=None)
def test_more_seeds_are_never_slower(numbers: list[int]) -> None:
    network, times, origin = setting(ring_full_switch(4), 1, Occupancy.ALPHA_BETA)
    fewer, more = sorted(numbers[:2])
    assert moved(network, times, origin, more + 1) <= moved(network, times, origin, fewer + 1)


def test_the_same_seed_gives_the_same_schedule() -> None:
    network, times, origin = setting(ring_full_switch(4), 2, Occupancy.ALPHA_BETA)
    translations = Translations.of(network, origin, times)
    assert translations is not None
    first, second = (all_gather(network, translations, times, origin, 3) for _ in range(2))
    assert np.array_equal(first.chunk, second.chunk)
    assert np.array_equal(first.start, second.start)


def test_disconnected_networks_are_refused() -> None:
    node = np.arange(6)
    network = LinkNetwork.of(
        Links.uniform(node, (node + 2) % 6, 1e9, 0.0).topology("two rings", 6, 6)
    )
    times = network.link_times(MIB, Occupancy.ALPHA_BETA)
    translations = Translations.of(network, each(network, 1), times)
    assert translations is not None
    with pytest.raises(
        InputError, match="topology two rings: NPU 5 cannot reach NPU 0: no link leaves NPUs 1,3,5"
    ):
        all_gather(network, translations, times, each(network, 1))


def test_links_that_take_no_time_are_refused() -> None:
    network = LinkNetwork.of(parse_topology("ring:3"))
    times = LinkTimes(np.zeros(6, np.int64), np.zeros(6, np.int64))
    translations = Translations.of(network, each(network, 1), times)
    assert translations is not None
    with pytest.raises(InputError, match="a link takes no time"):
        all_gather(network, translations, times, each(network, 1))
