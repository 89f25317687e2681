"""Bounds equal the published ones to the digits, and no schedule is below them."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import LinkGroups, compute_lower_bounds_ps
from collhub_tacos.spreading.homogeneous import find_best_all_gather
from hypothesis import given, settings
from hypothesis import strategies as st
from tacos_networks import TESTS_OF_THE_RELEASE, mesh, ring_full_switch

from hub_core import Collective, CollectiveKind, Topology, parse_topology, synthesize
from hub_core.model import ROOTED, STANDARD_KINDS
from hub_core.network import Links, Occupancy

MIB = 1 << 20
OPPOSITES = [
    (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER),
    (CollectiveKind.BROADCAST, CollectiveKind.REDUCE),
    (CollectiveKind.SCATTER, CollectiveKind.GATHER),
    (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_REDUCE),
    (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL),
]


def collective(kind: CollectiveKind, ranks: int, units: int) -> Collective:
    return Collective(kind, ranks, units, 0 if kind in ROOTED else None)


def bounds(
    topology: Topology | str,
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    chunks: int = 1,
    chunk_bytes: int = MIB,
    occupancy: Occupancy = Occupancy.ALPHA_BETA,
) -> dict[str, int]:
    network = LinkNetwork.of(parse_topology(topology) if isinstance(topology, str) else topology)
    ranks = network.num_npus
    return compute_lower_bounds_ps(
        collective(kind, ranks, chunks * ranks), network, np.arange(ranks), chunk_bytes, occupancy
    )


def largest_us(topology: Topology | str, chunks: int, total: int) -> float:
    """Larger of ingress and diameter, of which the published tables are made, in us."""
    # Cuts may be tighter.
    npus = (parse_topology(topology) if isinstance(topology, str) else topology).num_npus
    found = bounds(topology, chunks=chunks, chunk_bytes=total // (npus * chunks))
    return max(found["ingress"], found["diameter"]) / 1e6


# Bounds of TACOS v1.3.0 on equal links, 1 MiB a node: chunks a node, microseconds.
HOMOGENEOUS = [
    ("mesh:8x8", 1, 641.0),
    ("mesh:16x16", 1, 2564.0),
    ("mesh:32x32", 1, 10256.0),
    ("mesh:45x45", 1, 20271.6),
    ("mesh:8x8", 4, 678.2),
    ("mesh:16x16", 4, 2745.2),
    ("torus:8x8", 1, 320.5),
    ("torus:16x16", 1, 1282.0),
    ("torus:32x32", 1, 5128.0),
    ("torus:8x8", 4, 339.1),
    ("torus:16x16", 4, 1372.6),
    ("torus:4x4x4", 1, 220.3),
    ("torus:6x6x6", 1, 721.1),
    ("torus:8x8x8", 1, 1722.7),
    ("torus:10x10x10", 1, 3345.2),
    ("torus:4x4x4", 4, 226.1),
    ("torus:6x6x6", 4, 775.1),
    ("torus:8x8x8", 4, 1835.5),
    ("mesh:4x4x4", 1, 420.7),
    ("mesh:6x6x6", 1, 1442.2),
    ("mesh:8x8x8", 1, 3425.3),
    ("mesh:10x10x10", 1, 6670.4),
    ("mesh:4x4x4", 4, 452.2),
    ("mesh:6x6x6", 4, 1544.9),
]
# Bounds of TACOS v1.3.0 on links that differ, 1 MiB a node.
HETEROGENEOUS = [
    (mesh(4, 4, 50, 75), 1, 121.69),
    (mesh(4, 4, 16, 73), 1, 232.24),
    (mesh(5, 5, 50, 75), 1, 200.31),
    (mesh(5, 5, 16, 73), 1, 309.65),
    (mesh(8, 8, 50, 75), 1, 513.79),
    (mesh(8, 8, 16, 73), 1, 758.76),
    (mesh(7, 10, 16, 73), 1, 833.14),
    (mesh(12, 12, 16, 73), 1, 1725.80),
    (mesh(12, 12, 50, 75), 1, 1161.81),
    (mesh(16, 16, 16, 73), 1, 3064.78),
    (mesh(16, 16, 50, 75), 1, 2063.22),
    (mesh(4, 4, 16, 73), 4, 227.69),
    (mesh(5, 5, 16, 73), 4, 363.33),
    (mesh(4, 4, 50, 75), 4, 134.57),
    (mesh(5, 5, 50, 75), 4, 214.05),
    (mesh(8, 8, 50, 75), 4, 559.53),
    (mesh(12, 12, 50, 75), 4, 1265.51),
    (mesh(8, 8, 16, 73), 4, 949.50),
    (mesh(12, 12, 16, 73), 4, 2150.91),
    (ring_full_switch(4), 1, 96.89),
    (ring_full_switch(8), 1, 193.78),
    (ring_full_switch(16), 1, 387.36),
    (ring_full_switch(16, 3), 1, 387.36),
    (ring_full_switch(4), 4, 109.54),
    (ring_full_switch(8), 4, 220.25),
    (ring_full_switch(16), 4, 443.94),
    # 29 messages of 15.1484375 us are 439.3046875 us; the table says 439.31.
    (ring_full_switch(16, 3), 4, 439.30),
]
# 2(N - 1) messages a chunk on all links (Nash-Williams, Tutte 1961): steps for as many chunks as
# nodes, before rounding to whole steps.
ALL_REDUCE = [
    ("mesh:4x4", 10.0),
    ("mesh:5x5", 15.0),
    ("mesh:6x6", 21.0),
    ("mesh:8x8", 36.0),
    ("mesh:16x16", 136.0),
    ("mesh:5x5x5", 155 / 3),
    ("torus:8x8", 31.5),
    ("torus:4x4x4", 21.0),
]


@pytest.mark.parametrize(("text", "chunks", "total", "expected_us"), TESTS_OF_THE_RELEASE)
def test_bounds_equal_the_expectations_of_the_release(
    text: str, chunks: int, total: int, expected_us: float
) -> None:
    assert largest_us(text, chunks, total) == pytest.approx(expected_us, abs=0.005001)


@pytest.mark.parametrize(("text", "chunks", "expected_us"), HOMOGENEOUS)
def test_bounds_of_homogeneous_networks(text: str, chunks: int, expected_us: float) -> None:
    topology = parse_topology(f"{text}?bandwidth=50GiB/s&latency=500ns")
    assert largest_us(topology, chunks, topology.num_npus * MIB) == pytest.approx(
        expected_us, abs=0.050001
    )


@pytest.mark.parametrize(
    ("topology", "chunks", "expected_us"),
    HETEROGENEOUS,
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_bounds_of_heterogeneous_networks(
    topology: Topology, chunks: int, expected_us: float
) -> None:
    assert largest_us(topology, chunks, topology.num_npus * MIB) == pytest.approx(
        expected_us, abs=0.005001
    )


@pytest.mark.parametrize(("text", "steps"), ALL_REDUCE)
def test_an_all_reduce_must_send_everything_twice_to_all_but_one(text: str, steps: float) -> None:
    found = bounds(
        f"{text}?bandwidth=1GB/s&latency=0ns", CollectiveKind.ALL_REDUCE, chunk_bytes=1000
    )
    assert found["fluid"] / 1e6 == pytest.approx(steps, abs=1e-6)
    assert found["bandwidth"] / 1e6 == np.ceil(steps)


def test_slabs_bind_an_all_reduce_between_two_dense_halves() -> None:
    found = bounds(
        "fc:8*line:2?bandwidth=80GB/s,1GB/s&latency=0ns",
        CollectiveKind.ALL_REDUCE,
        chunk_bytes=1000,
    )
    assert found["bandwidth"] == 2 * 16 // 16 * 10**6


def test_an_all_to_all_crosses_the_middle() -> None:
    found = bounds(
        "torus:8x8x8?bandwidth=1GB/s&latency=0ns", CollectiveKind.ALL_TO_ALL, chunk_bytes=1000
    )
    # Half of the pairs that begin in one half end in the other: 256 * 256 messages over 2 * 64
    # links.
    assert found["cut"] == 512 * 10**6
    # 6 hops on average over 511 others, of 6 links a node.
    assert found["bandwidth"] == 512 * 10**6


def test_an_all_to_alls_hops_are_counted_over_all_pairs() -> None:
    found = bounds(
        "line:3?bandwidth=1GB/s&latency=0ns", CollectiveKind.ALL_TO_ALL, chunk_bytes=1000
    )
    assert found["bandwidth"] == (4 * 1 + 2 * 2) // 4 * 10**6


def test_serialization_sends_while_the_latency_passes() -> None:
    text = "mesh:8x8?bandwidth=1GB/s&latency=500ns"
    assert bounds(text, chunk_bytes=1000)["ingress"] == 32 * 1_500_000
    assert (
        bounds(text, chunk_bytes=1000, occupancy=Occupancy.SERIALIZATION)["ingress"]
        == 32 * 1_000_000 + 500_000
    )


def test_the_root_binds_rooted_collectives() -> None:
    text = "line:3?bandwidth=1GB/s&latency=0ns"
    unit = 10**6
    assert bounds(text, CollectiveKind.BROADCAST, 4, 1000)["egress"] == 12 * unit
    assert bounds(text, CollectiveKind.REDUCE, 4, 1000)["ingress"] == 12 * unit
    assert bounds(text, CollectiveKind.SCATTER, 4, 1000)["egress"] == 8 * unit
    assert bounds(text, CollectiveKind.GATHER, 4, 1000)["ingress"] == 8 * unit
    assert bounds(text, CollectiveKind.GATHER, 4, 1000)["diameter"] == 2 * unit


@pytest.mark.parametrize(("kind", "opposite"), OPPOSITES)
def test_opposite_collectives_have_equal_bounds_on_duplex_networks(
    kind: CollectiveKind, opposite: CollectiveKind
) -> None:
    text = "mesh:3x4?bandwidth=16GiB/s,73GiB/s&latency=1.5us"
    swapped = {"ingress": "egress", "egress": "ingress"}
    assert bounds(text, kind, 3) == {
        swapped.get(name, name): time for name, time in bounds(text, opposite, 3).items()
    }


@given(st.permutations(range(8)), st.sampled_from(STANDARD_KINDS), st.sampled_from(list(Occupancy)))
@settings(max_examples=40, deadline=None)
def test_renumbering_changes_no_bound(
    numbers: list[int], kind: CollectiveKind, occupancy: Occupancy
) -> None:
    topology = parse_topology("dgx1v")
    number = np.asarray(numbers)
    links = Links(
        number[topology.source],
        number[topology.destination],
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
    )
    asked = collective(kind, 8, 16)
    plain = compute_lower_bounds_ps(asked, LinkNetwork.of(topology), np.arange(8), MIB, occupancy)
    assert (
        compute_lower_bounds_ps(
            asked, LinkNetwork.of(links.topology("renumbered", 8, 8)), number, MIB, occupancy
        )
        == plain
    )


@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 3), st.sampled_from(list(Occupancy)))
@settings(max_examples=40, deadline=None)
def test_no_all_gather_is_faster_than_the_bounds(
    width: int, height: int, chunks: int, occupancy: Occupancy
) -> None:
    topology = parse_topology(f"mesh:{width}x{height}?bandwidth=50GB/s&latency=5us")
    network, npus = LinkNetwork.of(topology), width * height
    times = network.link_times(MIB, occupancy)
    origin = np.repeat(np.arange(npus), chunks)
    found = find_best_all_gather(
        network, int(times.busy[0]), origin, arrival_ps=int(times.arrival[0]), seeds=3
    )
    assert max(bounds(topology, chunks=chunks, occupancy=occupancy).values()) <= found.log.time_ps


def test_a_group_counts_only_what_its_members_need() -> None:
    network = LinkNetwork.of(parse_topology("ring:8?bandwidth=1GB/s&latency=0ns"))
    found = compute_lower_bounds_ps(
        collective(CollectiveKind.ALL_GATHER, 2, 2),
        network,
        np.asarray([1, 4]),
        1000,
        Occupancy.ALPHA_BETA,
    )
    assert found == {
        "ingress": 10**6,
        "egress": 10**6,
        "cut": 10**6,
        "diameter": 3 * 10**6,
        "fluid": 500_000,
    }


def test_a_narrow_cut_gives_the_largest_bound() -> None:
    links = parse_topology("fc:4?bandwidth=50GB/s")
    pairs = [(links.source + shift, links.destination + shift) for shift in (0, 4)] + [
        (np.asarray([3, 4]), np.asarray([4, 3]))
    ]
    source, destination = (np.concatenate(column) for column in zip(*pairs, strict=True))
    network = LinkNetwork.of(
        Links.uniform(source, destination, 50e9, 0.0).topology("two cliques", 8, 8)
    )
    asked = collective(CollectiveKind.ALL_GATHER, 8, 8)
    nodes = np.arange(8) < 4
    plain = compute_lower_bounds_ps(asked, network, np.arange(8), 50_000, Occupancy.ALPHA_BETA)
    with_cut = compute_lower_bounds_ps(
        asked, network, np.arange(8), 50_000, Occupancy.ALPHA_BETA, [nodes]
    )
    assert plain["ingress"] == 3 * 10**6
    assert with_cut["cut"] == 4 * 10**6


def test_links_on_which_messages_take_no_time_next_to_slow_ones() -> None:
    # 333 bytes at 1e18 B/s are 0.0003 ps: as many messages as needed arrive after the latency.
    ends = np.asarray([(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)], np.int64)
    bandwidth = np.asarray([1e18, 1e18, 25e9, 25e9, 25e9, 25e9])
    columns = Links(
        ends[:, 0].copy(),
        ends[:, 1].copy(),
        bandwidth,
        np.full(6, 5e-7),
    )
    topology = columns.topology("one fast pair", 3, 3)
    result = synthesize(collective(CollectiveKind.ALL_GATHER, 3, 3), topology, 999, name="tacos")
    assert result.bound_ns == 513
    assert result.time_ns <= 514


@given(
    links=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=8),
    groups=st.lists(
        st.tuples(st.sets(st.integers(0, 7), max_size=4), st.integers(0, 12)),
        min_size=1,
        max_size=4,
    ),
)
def test_times_of_groups_count_the_messages_that_have_arrived(
    links: list[tuple[int, int]], groups: list[tuple[set[int], int]]
) -> None:
    """The time of a group is the first one at which its links have delivered enough messages."""
    busy, arrival = np.asarray(links, np.int64).T
    tables = []
    expected = []
    for members, needed in groups:
        chosen = sorted(member for member in members if member < len(links))
        tables.append(LinkGroups.one(np.isin(np.arange(len(links)), chosen), needed))
        arrivals = sorted(
            int(arrival[link] + count * busy[link]) for link in chosen for count in range(needed)
        )
        expected.append(arrivals[needed - 1] if chosen and needed else 0)
    times = LinkTimes(busy, arrival)
    joined = LinkGroups.joined(tables)
    assert joined.list_times_ps(times).tolist() == expected
    assert joined.time_ps(times) == max(expected)
