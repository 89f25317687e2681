"""Flows: at the bound on small networks, right contents, and proofs that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_certificates.time_bounds import check_flow
from collhub_flows.jobs import NUM_TIE_ORDERS, FlowJobs, FlowPaths, FlowSchedule, _spread_jobs
from collhub_flows.optimal_flow import (
    FlowArcs,
    FlowDemand,
    approximate_flow,
    balance_paths,
    compute_proven_time,
    solve_exact_flow,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind, InputError, UnitCounts, UsageError
from hub_core.model.count_sources import parse_counts
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import CheckRequest, NoOptions, SynthesisResult
from hub_core.schedules import Transfers
from hub_core.verification import verify

MIB = 1 << 20


def collective_of(kind: str, ranks: int, root: int = 0) -> Collective:
    wished = CollectiveKind(kind)
    rooted = root if wished.traits.is_rooted else None
    return Collective(wished, ranks, wished.traits.parts(ranks), root=rooted, in_place=True)


def synthesized(
    kind: str,
    topology: Topology,
    size: int = 64 * MIB,
    npus: list[int] | None = None,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
    **options: object,
) -> SynthesisResult:
    ranks = len(npus) if npus else topology.num_npus
    texts = {name: str(value) for name, value in options.items()}
    collective = collective_of(kind, ranks)
    return hub_core.synthesize(
        collective, topology, size, name="flows", npus=npus, options=texts, occupancy=occupancy
    )


def random_network(nodes: int, chords: int, seed: int) -> Topology:
    """Random tree with chords, both ways, and bandwidths of 10 to 40 GB/s."""
    draw = np.random.default_rng(seed)
    edges = {(int(draw.integers(node)), node) for node in range(1, nodes)}
    for _ in range(chords):
        a, b = sorted(draw.choice(nodes, 2, replace=False).tolist())
        edges.add((a, b))
    pairs = sorted(edges | {(b, a) for a, b in edges})
    source, destination = np.array(pairs, np.int64).T.copy()
    bandwidth = draw.choice([10e9, 20e9, 40e9], len(pairs))
    latency = np.full(len(pairs), 500e-9)
    return Topology("random", nodes, nodes, source, destination, bandwidth, latency)


@pytest.mark.parametrize("kind", ["all-to-all", "scatter", "gather"])
# Behind several switches, messages of one pair of ranks must not overtake one another.
@pytest.mark.parametrize(
    "text", ["ring:5", "mesh:3x4", "switch:4", "dragonfly:2,2,2", "dgx-h100:2"]
)
def test_contents_are_right(kind: str, text: str) -> None:
    result = synthesized(kind, parse_topology(text), MIB)
    assert verify(result.algorithm).ok


def test_messages_that_change_places_at_a_switch_arrive_right() -> None:
    result = synthesized("all-to-all", parse_topology("leaf-spine:4,4,2"), 100_000)
    assert verify(result.algorithm).ok


@pytest.mark.parametrize("text", ["ring:8", "mesh:3x4", "torus:4x4", "hypercube:3"])
def test_all_to_all_is_at_the_bound(text: str) -> None:
    result = synthesized("all-to-all", parse_topology(text))
    assert result.time_ns <= 1.01 * result.bounds_ns["flow"]


def test_latency_is_part_of_the_alpha_beta_flow() -> None:
    network = random_network(9, 5, 3)
    result = synthesized("all-to-all", network, occupancy=Occupancy.ALPHA_BETA)
    assert result.time_ns <= 1.03 * result.bounds_ns["flow"]


def test_ring_bound_is_the_textbook_one() -> None:
    # On a ring of 8, a share goes over 1+2+3+4+3+2+1 = 16 links per source, of 2 a node: 8 shares.
    result = synthesized("all-to-all", parse_topology("ring:8?bandwidth=50GB/s"))
    assert result.bounds_ns["flow"] == pytest.approx(8 * 8 * MIB / 50, abs=2)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 9), st.integers(0, 8), st.integers(0, 10**6))
def test_any_network_is_served_and_never_beats_its_bound(
    nodes: int, chords: int, seed: int
) -> None:
    result = synthesized("all-to-all", random_network(nodes, chords, seed), MIB)
    assert verify(result.algorithm).ok
    assert result.bounds_ns["flow"] <= result.time_ns


def test_both_methods_agree_and_bounds_bracket_the_optimum() -> None:
    network = FlowArcs.of(random_network(10, 8, 1))
    demand = FlowDemand.of(collective_of("all-to-all", 10), range(10), 10)
    cost = 1e9 / network.topology.bandwidth_bytes_per_s
    exact = solve_exact_flow(network, demand, cost)
    assert exact is not None
    best = (exact.amounts.sum(axis=0) * cost).max()
    assert compute_proven_time(network, demand, cost, exact.prices) == pytest.approx(best, rel=1e-6)
    near = approximate_flow(network, demand, cost, 400)
    assert compute_proven_time(network, demand, cost, near.prices) <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= (near.amounts.sum(axis=0) * cost).max() <= 1.05 * best


def test_paths_carry_whole_shares_from_source_to_target() -> None:
    network = FlowArcs.of(random_network(10, 8, 2))
    demand = FlowDemand.of(collective_of("all-to-all", 10), range(10), 10)
    flow = solve_exact_flow(network, demand, 1e9 / network.topology.bandwidth_bytes_per_s)
    assert flow is not None
    paths = FlowPaths.of(network, demand, flow, 240, 8, np.ones(network.topology.num_links))
    assert set(np.bincount(paths.share, paths.units)) == {paths.share_units}
    source, target = demand.pairs
    first, last = paths.arcs[paths.indptr[:-1]], paths.arcs[paths.indptr[1:] - 1]
    assert np.array_equal(network.source[first], source[paths.share])
    assert np.array_equal(network.destination[last], target[paths.share])


def test_balanced_paths_have_the_minimum_load_of_the_busiest_link() -> None:
    network = FlowArcs.of(hub_core.parse_topology("ring:4"))
    ends = list(zip(network.source.tolist(), network.destination.tolist(), strict=True))
    clockwise, other = [(0, 1), (1, 2)], [(0, 3), (3, 2)]
    arcs = np.asarray([ends.index(arc) for arc in (*clockwise, *other)])
    path, share = np.asarray([0, 0, 1, 1]), np.zeros(2, np.int64)
    cost = np.ones(network.topology.num_links)
    balanced = balance_paths(network, share, np.asarray([3.0, 1.0]), (path, arcs), cost)
    assert balanced == pytest.approx([2.0, 2.0], abs=1e-6)


def test_many_pieces_are_used_only_far_from_the_bound() -> None:
    """Measured: 8 pieces take 2841 us on this dragonfly, 64 pieces 2507 us; the ring needs one."""
    dragonfly = parse_topology("dragonfly:2,1,1?bandwidth=25GB/s")
    fine, coarse = (
        synthesized("all-to-all", dragonfly),
        synthesized("all-to-all", dragonfly, pieces=8),
    )
    assert verify(fine.algorithm).ok
    assert fine.time_ns < 0.9 * coarse.time_ns
    assert synthesized("all-to-all", parse_topology("ring:8")).statistics["pieces"] <= 8


def test_ranks_in_any_order_with_relays() -> None:
    result = synthesized("all-to-all", parse_topology("mesh:4x4"), MIB, [9, 3, 14, 1])
    assert verify(result.algorithm).ok


def test_same_request_gives_the_same_steps() -> None:
    first, second = (synthesized("all-to-all", random_network(8, 4, 5)) for _ in range(2))
    assert not first.algorithm.steps.differences(second.algorithm.steps)
    assert first.bounds_ns == second.bounds_ns


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_unreachable_rank_is_refused(method: str) -> None:
    one_way = replace(parse_topology("ring:3"), name="path")
    kept = np.flatnonzero((one_way.source == 0) | (one_way.source == 1))
    broken = Topology(
        "broken",
        3,
        3,
        one_way.source[kept],
        one_way.destination[kept],
        one_way.bandwidth_bytes_per_s[kept],
        one_way.latency_s[kept],
    )
    with pytest.raises(InputError, match="reach"):
        synthesized("all-to-all", broken, MIB, method=method)


def test_other_collectives_are_refused() -> None:
    with pytest.raises(InputError, match="flows does not support all-reduce; it supports all-to"):
        synthesized("all-reduce", parse_topology("ring:4"))


def test_less_than_a_byte_a_share_is_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        synthesized("all-to-all", parse_topology("ring:4"), 3)


def test_large_networks_are_refused_beforehand() -> None:
    with pytest.raises(InputError, match="too large"):
        synthesized("all-to-all", parse_topology("mesh:40x40"))


def uneven(ranks: int, seed: int) -> Collective:
    """All-to-all-v with a random table, of which a third of the pairs is empty."""
    draw = np.random.default_rng(seed)
    table = draw.integers(1, 50, (ranks, ranks)) * (draw.random((ranks, ranks)) < 0.67)
    table[0, 1] += 1
    counts = UnitCounts.from_table(table, is_per_pair=True)
    return Collective(CollectiveKind.ALL_TO_ALL_V, ranks, counts.total, counts=counts)


# Sent in KiB by each rank to the ranks: `dispatch` of the job of experts in docs/workloads.md.
_DISPATCH = (
    (0, 118, 183, 101, 81, 110, 85, 139),
    (122, 0, 170, 106, 86, 109, 100, 123),
    (122, 114, 0, 104, 75, 110, 96, 132),
    (124, 131, 174, 0, 77, 101, 84, 123),
    (122, 127, 173, 106, 0, 97, 85, 133),
    (118, 105, 165, 118, 77, 0, 92, 151),
    (127, 126, 172, 97, 88, 103, 0, 134),
    (123, 119, 170, 110, 95, 90, 93, 0),
)


def test_tie_orders_are_tried_for_all_numbers_of_pieces() -> None:
    """The best number of pieces is not the finest one."""
    counts = UnitCounts.from_table(_DISPATCH, is_per_pair=True)
    collective = Collective(CollectiveKind.ALL_TO_ALL_V, 8, counts.total, counts=counts)
    topology = parse_topology("leaf-spine:2,4,2")
    result = hub_core.synthesize(collective, topology, counts.total << 10, name="flows")
    assert result.statistics["pieces"] == 8
    # 1.16 with tie orders for the finest number of pieces only.
    assert result.time_ns <= 1.13 * result.bounds_ns["flow"]


@pytest.mark.parametrize(
    ("network", "seed"),
    [
        ("torus:3x3", 1),
        ("ring:6", 2),
        (random_network(8, 5, 3), 3),
        ("switch:6", 4),
        ("leaf-spine:2,2,2", 5),
    ],
)
def test_uneven_exchanges_are_correct_and_within_five_percent_of_the_flow(network, seed):
    topology = parse_topology(network) if isinstance(network, str) else network
    collective = uneven(topology.num_npus, seed)
    result = hub_core.synthesize(collective, topology, 64 * MIB, name="flows")
    assert verify(result.algorithm).ok
    assert result.time_ns <= 1.05 * result.bounds_ns["flow"]
    counts = result.algorithm.collective.counts
    factor = counts.total // collective.unit_count
    assert counts == collective.counts.multiplied(factor)
    request = CheckRequest(algorithm=result.algorithm, topology=topology)
    assert check_flow(request, NoOptions()).ok
    # The same prices for other counts are refused.
    other = counts.transposed()
    transposed = replace(result.algorithm.collective, counts=other)
    changed = replace(result.algorithm, collective=transposed)
    report = check_flow(replace(request, algorithm=changed), NoOptions())
    assert "the flow certificate is for other counts" in report.diagnostics[0].message


def test_messages_wait_for_an_arrival_that_is_planned_before_their_start():
    """The window of a message leads to the latest such arrival on its link, else to the first."""
    link = np.array([0, 0, 0, 0, 1])
    start = np.array([0, 10, 20, 30, 0])
    # The second message is delayed at a switch: the third one arrives earlier.
    finish = np.array([15, 90, 28, 60, 9])
    zeros = np.zeros(5, np.int64)
    transfers = Transfers(
        np.arange(5), zeros, zeros + 1, link, start, finish, zeros.astype(np.bool_), zeros + 1
    )
    schedule = FlowSchedule(transfers, zeros, zeros, zeros + 1, 1, 90)
    window = schedule.order_as_planned().transfers.window
    # Messages 1 and 2 wait for message 0, message 3 for message 2; the first ones for none.
    assert window.tolist() == [1, 1, 2, 1, 1]


def test_progress_orders_pieces_by_the_fraction_of_their_path():
    """Two paths share a link: of 4 and 2 pieces, the latter's second comes after two of 4."""
    topology = parse_topology("ring:2")
    network = FlowArcs.of(topology)
    arc = int(np.flatnonzero(network.source == 0)[0])
    paths = FlowPaths(
        np.array([0, 1]), np.array([4, 2]), np.array([0, 1, 2]), np.array([arc, arc]), 1, True
    )
    jobs = FlowJobs.of(network, paths, 3, 1e6, Occupancy.SERIALIZATION)
    assert jobs.path.tolist() == [0, 0, 0, 0, 1, 1]
    order = np.argsort(jobs.order_by_progress(has_switches=False), kind="stable")
    assert [int(jobs.number[piece]) for piece in order if jobs.path[piece] == 0] == [0, 1, 2, 3]
    # Fractions: 0, 1/4, 2/4, 3/4 and 0, 1/2.
    assert sorted(order[:2].tolist()) == [0, 4]
    assert order[2] == 1
    assert sorted(order[3:5].tolist()) == [2, 5]


def _synthesize_zipf(network: str, **options: object) -> SynthesisResult:
    topology = parse_topology(network)
    ranks = topology.num_npus
    counts = parse_counts("zipf:1.2,seed=1", CollectiveKind.ALL_TO_ALL_V, ranks)
    assert counts is not None
    collective = Collective(CollectiveKind.ALL_TO_ALL_V, ranks, counts.total, counts=counts)
    return hub_core.synthesize(
        collective,
        topology,
        ranks * 64 * MIB,
        name="flows",
        options={name: str(value) for name, value in options.items()},
    )


def test_paths_of_an_approximate_flow_are_balanced_behind_switches() -> None:
    """Measured: 1472 us with the paths of the flow, 1048 us with balanced ones."""
    result = _synthesize_zipf("dgx-h100:2", method="approximate", phases=10)
    assert verify(result.algorithm).ok
    assert result.time_ns < 1_100_000


def test_other_tie_orders_keep_the_jobs_of_a_piece_adjacent() -> None:
    piece = np.repeat(np.arange(7), 3)
    orders = [_spread_jobs(piece, 7, number) for number in range(NUM_TIE_ORDERS)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(21))
        assert np.array_equal(np.diff(order.reshape(7, 3)), np.ones((7, 2)))
    assert any(not np.array_equal(orders[0], order) for order in orders[1:])


def test_counts_of_equal_pairs_have_the_bound_of_the_all_to_all():
    topology = random_network(8, 5, 3)
    even = synthesized("all-to-all", topology)
    counts = UnitCounts.from_table(np.ones((8, 8), np.int64), is_per_pair=True)
    collective = Collective(CollectiveKind.ALL_TO_ALL_V, 8, 64, counts=counts)
    # The size of an all-to-all is one rank's buffer, that of an all-to-all-v all data.
    result = hub_core.synthesize(collective, topology, 8 * 64 * MIB, name="flows")
    assert result.bounds_ns["flow"] == pytest.approx(even.bounds_ns["flow"], rel=1e-6)


def test_ranks_that_send_nothing_and_small_sizes_are_refused():
    topology = parse_topology("ring:4")
    local = UnitCounts.from_table(np.eye(4, dtype=np.int64), is_per_pair=True)
    stay = Collective(CollectiveKind.ALL_TO_ALL_V, 4, 4, counts=local)
    with pytest.raises(UsageError, match="no rank sends data to another one"):
        hub_core.synthesize(stay, topology, 4096, name="flows")
    with pytest.raises(UsageError, match="too few bytes for a byte per unit: "):
        hub_core.synthesize(uneven(4, 1), topology, 16, name="flows")


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER])
def test_there_has_to_be_a_link(kind: CollectiveKind) -> None:
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, 2, kind.traits.parts(2), root)
    with pytest.raises(InputError, match="NPU 0 cannot reach NPU 1: no link leaves NPU 0"):
        hub_core.synthesize(collective, "mesh:2x4?npus=2,7", 1 << 20, name="flows")
