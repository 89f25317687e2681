"""Pipelined trees: right by contents, causal, and as fast as the rule of the pipeliner allows."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from collhub_packing import SpanningTree
from collhub_packing.pipelining import (
    Pipeline,
    Pipelining,
    best_chunks,
    by_multiplicative_increase,
    fitted_chunks,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelining_reference import plain_schedule

import hub_core
from hub_core import Collective, CollectiveKind, InputError, Topology, parse_topology, verify
from hub_core.model import ROOTED, STANDARD_KINDS
from hub_core.network import Occupancy
from hub_core.schedules import Chunks, Transfers, algorithm_of

# Trees carry all but what every rank sends to every other.
AT_RANKS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
KINDS = [kind for kind in STANDARD_KINDS if kind is not CollectiveKind.ALL_TO_ALL]
CONSTANTS = "?bandwidth=50GB/s&latency=200ns"
SIZE = 1 << 20


def tree_of(parents: list[int], weight: int = 1) -> SpanningTree:
    """A tree by the parent of every node, -1 at the root."""
    return SpanningTree(
        parents.index(-1),
        weight,
        np.asarray(parents, np.int64),
        np.full(len(parents), -1, np.int64),
    )


def random_tree(
    topology: Topology, root: int, weight: int, rng: np.random.Generator
) -> SpanningTree:
    """Every node hangs at a random neighbour that is in the tree already."""
    parent = np.full(topology.num_npus, -1, np.int64)
    inside = {root}
    links = list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))
    while len(inside) < topology.num_npus:
        leaving = [(u, v) for u, v in links if u in inside and v not in inside]
        above, node = leaving[int(rng.integers(len(leaving)))]
        parent[node] = above
        inside.add(node)
    return SpanningTree(root, weight, parent, np.full(topology.num_npus, -1, np.int64))


def collective_of(kind: CollectiveKind, ranks: int, root: int = 1) -> Collective:
    return Collective(kind, ranks, ranks, root if kind in ROOTED else None, in_place=True)


def prepared(
    kind: CollectiveKind,
    topology: Topology,
    seed: int = 0,
    occupancy: Occupancy = Occupancy.ALPHA_BETA,
    size: int = SIZE,
) -> tuple[Pipelining, list[SpanningTree]]:
    """Two random trees, of weights 2 and 1, for every root."""
    rng = np.random.default_rng(seed)
    roots = range(topology.num_npus) if kind in AT_RANKS else (1,)
    trees = [random_tree(topology, root, weight, rng) for root in roots for weight in (2, 1)]
    collective = collective_of(kind, topology.num_npus)
    return Pipelining.of(
        topology, trees, collective, size, occupancy, range(topology.num_npus)
    ), trees


def counts_of(trees: list[SpanningTree], repeats: int) -> list[int]:
    return [repeats * tree.weight for tree in trees]


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_are_right_by_contents(kind: CollectiveKind) -> None:
    pipelining, trees = prepared(kind, parse_topology(f"mesh:3x2{CONSTANTS}"))
    pipeline = pipelining.schedule([3, 2] * (len(trees) // 2))
    report = verify(algorithm_of(pipeline.collective, pipeline.chunks, pipeline.transfers))
    assert report.ok, report.diagnostics[:3]


@pytest.mark.needs_plugins
@pytest.mark.parametrize("occupancy", Occupancy)
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_time_is_the_planned_time(kind: CollectiveKind, occupancy: Occupancy) -> None:
    topology = parse_topology(f"mesh:3x2{CONSTANTS}")
    pipelining, trees = prepared(kind, topology, 0, occupancy)
    pipeline = pipelining.schedule(counts_of(trees, 4))
    algorithm = algorithm_of(pipeline.collective, pipeline.chunks, pipeline.transfers)
    simulated = hub_core.simulate(
        algorithm, topology, SIZE, options={"occupancy": str(occupancy)}
    ).time_ns
    # The simulator truncates every message to whole nanoseconds, and a reduction takes one.
    longest = int(np.bincount(pipeline.transfers.link).max()) + 10
    assert simulated is not None
    assert abs(simulated - pipeline.time_ps / 1000) <= longest


def test_deadlines_fill_the_pipelines_of_an_all_reduce_sooner() -> None:
    topology = parse_topology(f"mesh:4x4{CONSTANTS}")
    pipelining, trees = prepared(CollectiveKind.ALL_REDUCE, topology, size=64 * SIZE)
    by_deadline = replace(pipelining, has_deadlines=True)
    counts = counts_of(trees, 64)
    by_rounds, pipeline = pipelining.schedule(counts), by_deadline.schedule(counts)
    assert pipeline.time_ps < by_rounds.time_ps
    assert verify(algorithm_of(pipeline.collective, pipeline.chunks, pipeline.transfers)).ok


def test_deadlines_of_days_fit_into_the_priorities() -> None:
    topology = parse_topology("mesh:3x2?bandwidth=1KB/s&latency=200ns")
    pipelining, trees = prepared(CollectiveKind.ALL_REDUCE, topology, size=1 << 30)
    counts = counts_of(trees, 16)
    days = replace(pipelining, has_deadlines=True).schedule(counts).time_ps / 8.64e16
    assert 10 < days < 1.1 * pipelining.schedule(counts).time_ps / 8.64e16


@pytest.mark.parametrize("kind", KINDS)
def test_with_slack_data_lie_so_long_before_they_are_sent_on(kind: CollectiveKind) -> None:
    slack_ps = 3_000_000
    pipelining, trees = prepared(kind, parse_topology(f"mesh:3x2{CONSTANTS}"))
    pipeline = pipelining.schedule(counts_of(trees, 2), slack_ps)
    moved = pipeline.transfers
    waits = [slack_ps]
    for row in range(len(moved)):
        came = (moved.chunk == moved.chunk[row]) & (moved.destination == moved.source[row])
        before = came & (moved.finish <= moved.start[row])
        waits.extend((moved.start[row] - moved.finish[before]).tolist())
    assert min(waits) == slack_ps
    assert len(waits) > 1
    report = verify(algorithm_of(pipeline.collective, pipeline.chunks, moved))
    assert report.ok, report.diagnostics[:3]


def test_behind_a_switch_no_two_npus_send_to_one_at_once() -> None:
    topology = parse_topology("switch:5")
    trees = [tree_of([-1 if rank == root else root for rank in range(5)]) for root in range(5)]
    gather = collective_of(CollectiveKind.ALL_GATHER, 5)
    pipelining = Pipelining.of(topology, trees, gather, SIZE, Occupancy.SERIALIZATION, range(5))
    moved = pipelining.schedule([2] * 5).transfers
    for source in range(5):
        order = np.argsort(moved.start + (moved.source != source) * (1 << 60), kind="stable")
        sent_to = moved.destination[order[:8]].tolist()
        assert sent_to == [(source + distance) % 5 for distance in (1, 2, 3, 4)] * 2


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(list(Occupancy)),
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_plain_event_loop_gives_the_same_times(
    kind: CollectiveKind, occupancy: Occupancy, seed: int, wide: int, narrow: int
) -> None:
    topology = parse_topology("mesh:3x2?bandwidth=50GB/s,20GB/s&latency=200ns,1us")
    pipelining, trees = prepared(kind, topology, seed, occupancy)
    counts = [wide, narrow] * (len(trees) // 2)
    start, finish = plain_schedule(pipelining, counts)
    transfers = pipelining.schedule(counts).transfers
    assert transfers.start.tolist() == start
    assert transfers.finish.tolist() == finish


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.sampled_from(list(Occupancy)), st.integers(0, 10**6))
def test_links_carry_one_message_at_a_time(
    kind: CollectiveKind, occupancy: Occupancy, seed: int
) -> None:
    topology = parse_topology(f"ring:5{CONSTANTS}")
    pipelining, trees = prepared(kind, topology, seed, occupancy)
    transfers = pipelining.schedule(counts_of(trees, 2)).transfers
    latency = 0 if occupancy is Occupancy.ALPHA_BETA else 200_000
    order = np.lexsort((transfers.start, transfers.link))
    same = transfers.link[order][1:] == transfers.link[order][:-1]
    free = (transfers.finish - latency)[order][:-1]
    assert np.all(transfers.start[order][1:][same] >= free[same])


def test_broadcast_down_a_line_takes_chunks_plus_hops_less_one_steps() -> None:
    topology = parse_topology(f"mesh:5{CONSTANTS}")
    tree = tree_of([-1, 0, 1, 2, 3])
    collective = Collective(CollectiveKind.BROADCAST, 5, 1, 0)
    pipeline = Pipelining.of(
        topology, [tree], collective, 50_000, Occupancy.ALPHA_BETA, range(5)
    ).schedule([10])
    assert pipeline.time_ps == (10 + 4 - 1) * (200_000 + 100_000)


def test_all_reduce_does_not_wait_between_its_phases() -> None:
    topology = parse_topology(f"mesh:5{CONSTANTS}")
    tree = tree_of([1, 2, -1, 2, 3])
    collective = Collective(CollectiveKind.ALL_REDUCE, 5, 1)
    pipeline = Pipelining.of(
        topology, [tree], collective, 50_000, Occupancy.ALPHA_BETA, range(5)
    ).schedule([10])
    assert pipeline.time_ps == (10 + 4 - 1) * (200_000 + 100_000)


def test_what_is_reduced_goes_before_what_is_broadcast() -> None:
    topology = parse_topology(f"ring:4{CONSTANTS}")
    pipelining, trees = prepared(CollectiveKind.ALL_REDUCE, topology)
    first = replace(pipelining, reduces_first=True).schedule(counts_of(trees, 8)).transfers
    mixed = pipelining.schedule(counts_of(trees, 8)).transfers
    assert len(first) == len(mixed)
    for link in np.unique(first.link).tolist():
        kinds = [
            found.reduces[found.link == link][np.argsort(found.start[found.link == link])]
            for found in (first, mixed)
        ]
        # The last sum of a link leaves it no later than among broadcasts.
        ends = [int(np.flatnonzero(one).max(initial=-1)) for one in kinds]
        assert ends[0] <= ends[1]
    assert verify(algorithm_of(*_parts_of(pipelining, trees))).ok


def _parts_of(
    pipelining: Pipelining, trees: list[SpanningTree]
) -> tuple[Collective, Chunks, Transfers]:
    made = replace(pipelining, reduces_first=True).schedule(counts_of(trees, 8))
    return made.collective, made.chunks, made.transfers


def test_trees_carry_data_by_their_weights() -> None:
    pipelining, _ = prepared(CollectiveKind.BROADCAST, parse_topology(f"ring:4{CONSTANTS}"))
    pipeline = pipelining.schedule([3, 5])
    units = pipeline.chunks.count
    assert pipeline.collective.unit_count == 45
    assert units.tolist() == [10] * 3 + [3] * 5
    assert pipeline.chunks.input_offset.tolist() == (np.cumsum(units) - units).tolist()


def test_shares_of_ranks_are_split_by_the_trees_rooted_there() -> None:
    topology = parse_topology(f"ring:3{CONSTANTS}")
    trees = [
        tree_of([-1, 0, 0], 2),
        tree_of([-1, 2, 0], 1),
        tree_of([1, -1, 1]),
        tree_of([2, 2, -1]),
    ]
    collective = Collective(CollectiveKind.ALL_GATHER, 3, 3)
    pipeline = Pipelining.of(
        topology, trees, collective, SIZE, Occupancy.ALPHA_BETA, range(3)
    ).schedule([1, 1, 2, 1])
    assert pipeline.chunks.origin.tolist() == [0, 0, 1, 1, 2]
    parts = [
        Fraction(int(count), pipeline.collective.units_per_rank) for count in pipeline.chunks.count
    ]
    assert parts == [Fraction(2, 3), Fraction(1, 3), Fraction(1, 2), Fraction(1, 2), Fraction(1)]


def test_relays_without_members_below_them_get_nothing() -> None:
    topology = parse_topology(f"mesh:4{CONSTANTS}")
    collective = Collective(CollectiveKind.ALL_REDUCE, 2, 1)
    pipelining = Pipelining.of(
        topology, [tree_of([-1, 0, 1, 2])], collective, SIZE, Occupancy.ALPHA_BETA, [0, 2]
    )
    pipeline = pipelining.schedule([2])
    assert 3 not in pipeline.transfers.destination
    algorithm = algorithm_of(
        pipeline.collective, pipeline.chunks, pipeline.transfers, npus=[0, 2], num_npus=4
    )
    assert verify(algorithm).ok


def through_switch() -> tuple[Topology, Pipelining, list[dict[int, list[int]]]]:
    """A star over a switch with the routes of its tree, by rows of the topology."""
    topology = parse_topology(f"switch:4{CONSTANTS}")
    tree = tree_of([-1, 0, 0, 1])
    row = {
        (int(u), int(v)): place
        for place, (u, v) in enumerate(zip(topology.source, topology.destination, strict=True))
    }
    paths = [{node: [row[int(tree.parent[node]), 4], row[4, node]] for node in (1, 2, 3)}]
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 1)
    return (
        topology,
        Pipelining.of(topology, [tree], collective, SIZE, Occupancy.SERIALIZATION, range(4), paths),
        paths,
    )


def test_stated_routes_lead_up_by_their_opposites() -> None:
    topology, pipelining, _ = through_switch()
    routes = topology.routes(pipelining.operations.source, pipelining.operations.destination)
    assert pipelining.routes.links.tolist() == routes.links.tolist()
    assert pipelining.routes.indptr.tolist() == routes.indptr.tolist()


def test_messages_through_switches_take_every_link_in_turn() -> None:
    _, pipelining, _ = through_switch()
    transfers = pipelining.schedule([1]).transfers
    # 3 -> 1 -> 0 and 2 -> 0, then back: four messages in a row, each over two links.
    assert transfers.finish.max() == 4 * 2 * (200_000 + SIZE * 20)


@pytest.mark.parametrize(
    ("kind", "parents", "reason"),
    [
        (CollectiveKind.ALL_TO_ALL, [-1, 0, 1], "all-to-all does not run on spanning trees"),
        (CollectiveKind.BROADCAST, [-1, 0, 1], "a tree is not rooted at NPU 1"),
        (CollectiveKind.ALL_GATHER, [-1, 0, 1], "no tree is rooted at rank 1"),
        (CollectiveKind.ALL_REDUCE, [-1, 0, -1], "does not reach NPU 2"),
    ],
)
def test_unsuitable_trees_are_refused(
    kind: CollectiveKind, parents: list[int], reason: str
) -> None:
    topology = parse_topology(f"ring:3{CONSTANTS}")
    with pytest.raises(InputError, match=reason):
        Pipelining.of(
            topology,
            [tree_of(parents)],
            collective_of(kind, 3),
            SIZE,
            Occupancy.ALPHA_BETA,
            range(3),
        )


def test_chunks_of_less_than_a_byte_are_refused() -> None:
    pipelining, _ = prepared(
        CollectiveKind.ALL_REDUCE, parse_topology(f"ring:3{CONSTANTS}"), size=8
    )
    with pytest.raises(InputError, match="too few bytes for 9 chunks: 8"):
        pipelining.schedule([6, 3])


def formula(count: int) -> int:
    """Picoseconds on links of 0.2 us and 50 GB/s: 1 GB, rate 16/9, 36 steps to fill."""
    return round((9 * count + 36) * (200_000 + 1e9 * 20 / (16 * count)))


def test_best_count_is_near_the_least_of_the_formula() -> None:
    least = min(formula(count) for count in range(1, 1000))
    assert formula(best_chunks(formula, 10_000)) <= least * 1.002


def test_fit_finds_the_root_of_the_formula() -> None:
    # sqrt(f * S / (n * B) / (d * alpha))
    assert fitted_chunks({count: formula(count) for count in (1, 4, 16)}, 10_000) == round(
        (36 * 1.25e-3 / (9 * 2e-7)) ** 0.5
    )


def test_best_count_stays_below_the_most() -> None:
    assert best_chunks(lambda count: 1000 // count, 5) == 5
    assert best_chunks(lambda count: count, 1 << 20) == 1


def test_multiplicative_increase_agrees_with_the_fit() -> None:
    assert (
        formula(by_multiplicative_increase(formula, 4096))
        <= formula(best_chunks(formula, 4096)) * 1.05
    )


def test_pipelines_are_deterministic() -> None:
    def schedule() -> Pipeline:
        pipelining, trees = prepared(
            CollectiveKind.ALL_REDUCE, parse_topology(f"mesh:3x3{CONSTANTS}"), 3
        )
        return pipelining.schedule(counts_of(trees, 4))

    one, other = schedule(), schedule()
    assert one.transfers.start.tobytes() == other.transfers.start.tobytes()
