"""Trees up and other trees down on links that differ by direction, against an enumerated program."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from collhub_linear_programs import LinearProgram, Matrix, solve
from collhub_packing import CapacityGraph, SpanningTree, pack_two_ways
from collhub_packing.graph import transposed
from hypothesis import given, settings
from packing_checks import check_trees, directed_graphs, graph_from, graph_of, node_sets

from hub_core.columns import Int64Array


def best_rate(graph: CapacityGraph) -> float:
    """The highest rate of such trees: the linear program with the rows of all sets of nodes."""
    table, lower = [], []
    for side, _ in node_sets(graph):
        is_inside = np.isin(np.arange(graph.num_nodes), side)
        outside = -1.0 * ~is_inside[: graph.num_compute]
        enters = ~is_inside[graph.source] & is_inside[graph.destination]
        leaves = is_inside[graph.source] & ~is_inside[graph.destination]
        table += [np.concatenate([enters, outside]), np.concatenate([-1.0 * leaves, outside])]
        lower += [0.0, -float(graph.capacity[leaves].sum())]
    rows = np.asarray(table, np.float64)
    places = np.nonzero(rows)
    solution = solve(
        LinearProgram(
            np.repeat([0.0, -1.0], [graph.num_arcs, graph.num_compute]),
            Matrix(*places, rows[places], *rows.shape),
            np.asarray(lower),
            np.full(len(lower), np.inf),
            np.concatenate([graph.capacity, np.full(graph.num_compute, np.inf)]),
        )
    )
    assert solution is not None
    return -solution.lower_bound


@settings(max_examples=30)
@given(directed_graphs(most_nodes=5))
def test_trees_in_two_ways_fit_together_at_the_rate_of_the_linear_program(
    graph: CapacityGraph,
) -> None:
    packing = pack_two_ways(graph)
    assert packing is not None
    assert float(packing.rate) == pytest.approx(best_rate(graph), rel=1e-6)
    per_root = {root: weight for root, weight in enumerate(packing.per_root.tolist()) if weight}
    assert check_trees(packing.down_network.graph, packing.down) == per_root
    assert check_trees(packing.up_network.graph, packing.up) == per_root
    load = sum_loads(graph, packing.down) + sum_loads(graph, packing.up)
    assert np.all(load * packing.unit <= graph.capacity)


def sum_loads(graph: CapacityGraph, trees: list[SpanningTree]) -> Int64Array:
    """The weight on every arc of a network without switches."""
    load = np.zeros(graph.num_arcs, np.int64)
    for tree in trees:
        load[tree.arc[tree.arc >= 0]] += tree.weight
    return load


def test_rings_of_one_way_links_are_divided_between_both_ways() -> None:
    # One link carries all data up, the other one all data down.
    packing = pack_two_ways(graph_from(2, [(0, 1, 1), (1, 0, 1)]))
    assert packing is not None
    assert packing.rate == 1
    # A one-way ring: data pass every link twice, except that of the root.
    ring = pack_two_ways(graph_from(4, [(v, (v + 1) % 4, 1) for v in range(4)]))
    assert ring is not None
    assert ring.rate == Fraction(2, 3)


def test_trees_down_are_flat_although_the_program_gives_spare_links_to_the_way_up() -> None:
    # Node 0 sends slowly; all other links have capacity to spare.
    links = [(a, b, 8 if a else 1) for a in range(6) for b in range(6) if a != b]
    packing = pack_two_ways(graph_from(6, links))
    assert packing is not None
    assert packing.rate == 5
    # Trees in the capacities that the program assigns to the way down have a depth of 3 to 5.
    assert max(tree.depth for tree in [*packing.down, *packing.up]) <= 2


def test_trees_in_two_ways_pass_switches_at_the_best_rate() -> None:
    packing = pack_two_ways(graph_of("switch:4"))
    assert packing is not None
    # Every port sends 3/4 of its share up and 3/4 down, of 4 shares: 4 / (2 * 3) of a port.
    assert packing.rate == Fraction(2, 3)


def test_trees_in_two_ways_pass_a_switch_that_sends_less_than_it_receives() -> None:
    # Node 1 sends up to 2, but no link away from switch 2 carries more than 1.
    packing = pack_two_ways(graph_from(3, [(0, 2, 1), (1, 2, 2), (2, 0, 1), (2, 1, 1)], 2))
    assert packing is not None
    assert packing.rate == 1


def test_reversed_links_have_the_same_rate() -> None:
    rates = np.arange(1, 33) % 5 + 1
    graph = replace(graph_of("dgx1v"), capacity=rates)
    forward, backward = pack_two_ways(graph), pack_two_ways(transposed(graph))
    assert forward is not None
    assert backward is not None
    assert forward.rate == backward.rate


def test_capacities_that_become_too_large_with_the_denominator_give_no_packing() -> None:
    large = 3 * 10**16
    assert pack_two_ways(graph_from(4, [(v, (v + 1) % 4, large) for v in range(4)])) is None
