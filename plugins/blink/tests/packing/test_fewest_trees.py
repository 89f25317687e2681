"""Fewest trees: the golden tables, proofs, depths, and laws on random networks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from collhub_blink.packing.fewest_all_reduce_trees import find_fewest_all_reduce_trees
from collhub_blink.packing.fewest_broadcast_trees import (
    bound_tree_count,
    find_fewest_broadcast_trees,
)
from collhub_blink.packing.weight_search import Budget, TreeSearchResult, generate_weight_vectors
from collhub_packing import (
    CapacityGraph,
    SpanningTree,
    broadcast_rate,
    induced,
    pack_arborescences,
    strength,
)
from golden_classes import LINK_BYTES_PER_S, ROWS, Row
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import parse_topology

STEPS = 10_000_000


def graph_of(machine: str, npus: tuple[int, ...] | None = None) -> CapacityGraph:
    topology = parse_topology(machine)
    return CapacityGraph.of(topology if npus is None else topology.subset(npus))


def fewest_broadcast(
    graph: CapacityGraph, root: int = 0, depth: int | None = None, steps: int = STEPS
) -> TreeSearchResult:
    return find_fewest_broadcast_trees(
        graph, root, int(broadcast_rate(graph, root).value), (), Budget(steps), depth
    )


def fewest_all_reduce(
    graph: CapacityGraph, steps: int = STEPS
) -> tuple[TreeSearchResult, CapacityGraph]:
    rate = strength(graph).value
    scaled = replace(graph, capacity=graph.capacity * rate.denominator)
    return find_fewest_all_reduce_trees(scaled, rate.numerator, (), Budget(steps)), scaled


def check_trees(graph: CapacityGraph, trees: tuple[SpanningTree, ...], is_both_ways: bool) -> None:
    """Each spans, its parents are its arcs' sources, and all fit on the links."""
    load = np.zeros((graph.num_nodes, graph.num_nodes), np.int64)
    for tree in trees:
        hanging = np.flatnonzero(tree.parent >= 0)
        assert len(hanging) == graph.num_nodes - 1
        assert tree.depths.min() >= 0
        assert np.array_equal(graph.source[tree.arc[hanging]], tree.parent[hanging])
        assert np.array_equal(graph.destination[tree.arc[hanging]], hanging)
        load[tree.parent[hanging], hanging] += tree.weight
    if is_both_ways:
        load = load + load.T
    capacity = np.zeros_like(load)
    capacity[graph.source, graph.destination] = graph.capacity
    assert np.all(load <= capacity)


@pytest.mark.once
@pytest.mark.parametrize(
    ("machine", "row"), [(machine, row) for machine, rows in ROWS.items() for row in rows], ids=str
)
def test_rates_and_fewest_trees_are_those_of_the_golden_table(machine: str, row: Row) -> None:
    npus, _, broadcast, _, all_reduce, _, tree_counts, weights = row
    graph = graph_of(machine, npus)
    links = graph.unit / LINK_BYTES_PER_S[machine]
    found = [fewest_broadcast(graph, root) for root in range(len(npus))]
    assert {broadcast_rate(graph, root).value * links for root in range(len(npus))} == {broadcast}
    assert (
        tuple(sorted({len(each.trees) for each in found})),
        all(each.is_proved for each in found),
    ) == (tree_counts, True)
    assert strength(graph).value * links == Fraction(all_reduce)
    reduced, _ = fewest_all_reduce(graph)
    assert (len(reduced.trees), reduced.is_proved) == (len(weights), True)


def test_four_trees_carry_the_broadcast_of_a_dgx_1v_and_none_does_with_less() -> None:
    found = fewest_broadcast(graph_of("dgx1v"))
    assert [tree.weight for tree in found.trees] == [2, 2, 1, 1]
    # Every node has four in-arcs, all of which are full (Blink: 6 trees).
    assert found.reason == "node 1 needs all its in-arcs, and a tree uses one"


# Fewest trees within a depth on 8 GPUs, computed 2026-11 by another solver; 0: none in whole links.
@pytest.mark.parametrize(
    ("machine", "counts"),
    [("dgx1v", {3: 0, 4: 6, 5: 6, 6: 6, 7: 4}), ("dgx1p", {2: 0, 3: 4})],
    ids=["dgx1v", "dgx1p"],
)
def test_fewest_trees_within_a_depth(machine: str, counts: dict[int, int]) -> None:
    graph = graph_of(machine)
    found = {depth: fewest_broadcast(graph, 0, depth) for depth in counts}
    assert {depth: len(each.trees) for depth, each in found.items()} == counts
    assert all(tree.depth <= depth for depth, each in found.items() for tree in each.trees)


@pytest.mark.once
def test_a_spent_budget_leaves_the_known_trees_and_the_gap() -> None:
    graph = graph_of("dgx1v")
    known = pack_arborescences(graph, 0, 6, seeds=1)
    found = find_fewest_broadcast_trees(graph, 0, 6, known, Budget(0))
    assert (list(found.trees), found.lower_bound) == (known, 4)
    assert found.is_proved == (len(known) == 4)


def test_a_proof_that_is_cut_short_says_feasible() -> None:
    graph = graph_of("dgx1v")
    scaled = replace(graph, capacity=graph.capacity * 7)
    known = tuple(SpanningTree(0, 3, np.full(8, -1), np.full(8, -1)) for _ in range(8))
    found = find_fewest_all_reduce_trees(scaled, 24, known, Budget(1000))
    assert (found.status, found.trees, found.lower_bound < 6) == ("feasible", known, True)


def test_the_lower_bound_counts_wide_arcs_where_nothing_is_full() -> None:
    assert bound_tree_count(graph_of("fc:4"), 0, 3) == (3, "no tree can be wider")


def test_weights_are_listed_once_and_add_up() -> None:
    found = list(generate_weight_vectors(7, 3, 4))
    assert found == [(4, 2, 1), (3, 3, 1), (3, 2, 2)]


@st.composite
def duplex_graphs(draw: st.DrawFn) -> CapacityGraph:
    """Connected networks of duplex links: a random tree and more links."""
    n = draw(st.integers(3, 5))
    capacities = st.integers(1, 3)
    links = {(draw(st.integers(0, node - 1)), node): draw(capacities) for node in range(1, n)}
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(
        lambda pair: pair[0] < pair[1]
    )
    links |= draw(st.dictionaries(pairs, capacities, max_size=4))
    arcs = np.asarray(
        sorted(
            [(u, v, c) for (u, v), c in links.items()] + [(v, u, c) for (u, v), c in links.items()]
        ),
        np.int64,
    )
    return CapacityGraph(
        n, n, arcs[:, 0], arcs[:, 1], arcs[:, 2], np.arange(len(arcs)), Fraction(1)
    )


@pytest.mark.once
@settings(max_examples=30)
@given(duplex_graphs(), st.randoms(use_true_random=False))
def test_packings_are_sound_and_their_size_does_not_depend_on_the_numbering(
    graph: CapacityGraph, random
) -> None:
    broadcast, (reduced, scaled) = fewest_broadcast(graph), fewest_all_reduce(graph)
    check_trees(graph, broadcast.trees, False)
    check_trees(scaled, reduced.trees, True)
    assert sum(tree.weight for tree in broadcast.trees) == broadcast_rate(graph, 0).value
    order = random.sample(range(graph.num_nodes), graph.num_nodes)
    renumbered = induced(graph, order)
    assert len(fewest_broadcast(renumbered, order.index(0)).trees) == len(broadcast.trees)
    assert len(fewest_all_reduce(renumbered)[0].trees) == len(reduced.trees)


@settings(max_examples=20)
@given(duplex_graphs())
def test_growing_never_needs_fewer_trees_than_the_search_finds(graph: CapacityGraph) -> None:
    rate = int(broadcast_rate(graph, 0).value)
    assert len(fewest_broadcast(graph).trees) <= len(pack_arborescences(graph, 0, rate, seeds=4))
