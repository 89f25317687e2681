"""Rates against brute force over all cuts and partitions, and against published values."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from collhub_packing import CapacityGraph, all_gather_rate, broadcast_rate, strength
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_checks import (
    MACHINES,
    directed_graphs,
    duplex_graphs,
    graph_from,
    graph_of,
    leaving,
    node_sets,
    partitions,
    renumbered,
)

from hub_core import parse_topology
from hub_core.model import InputError


@given(directed_graphs())
def test_broadcast_reaches_the_least_cut_behind_the_root(graph):
    for root in range(graph.num_nodes):
        rate = broadcast_rate(graph, root)
        assert rate.value == min(
            leaving(graph, side) for side, _ in node_sets(graph) if root in side
        )
        assert root in rate.cut
        assert leaving(graph, rate.cut) == rate.value


@given(duplex_graphs(most_nodes=5, switches=2))
def test_all_gather_reaches_the_least_cut_by_compute_node(graph):
    rate = all_gather_rate(graph)
    assert rate.value == min(
        Fraction(leaving(graph, side), inside) for side, inside in node_sets(graph)
    )
    assert rate.value == Fraction(
        leaving(graph, rate.cut), sum(node < graph.num_compute for node in rate.cut)
    )


@given(directed_graphs(most_nodes=5), st.data())
def test_weights_say_how_much_each_node_sends(graph, data):
    weights = data.draw(
        st.lists(st.integers(0, 3), min_size=graph.num_nodes, max_size=graph.num_nodes).filter(any)
    )
    sent = {side: sum(weights[node] for node in side) for side, _ in node_sets(graph)}
    wanted = min(Fraction(leaving(graph, side), weight) for side, weight in sent.items() if weight)
    assert all_gather_rate(graph, weights).value == wanted


@given(directed_graphs())
def test_a_broadcast_is_an_all_gather_of_one_node(graph):
    weights = [0, 1, *[0] * (graph.num_nodes - 2)]
    assert all_gather_rate(graph, weights).value == broadcast_rate(graph, 1).value


@given(duplex_graphs())
def test_strength_is_the_least_over_partitions(graph):
    wanted = min(
        Fraction(sum(leaving(graph, block) for block in blocks), 2 * (len(blocks) - 1))
        for blocks in partitions(list(range(graph.num_nodes)))
        if len(blocks) > 1
    )
    found = strength(graph)
    assert found.value == wanted
    assert sorted(itertools.chain(*found.blocks)) == list(range(graph.num_nodes))
    assert found.blocks == found.sides


@settings(max_examples=40)
@given(duplex_graphs(most_nodes=4, switches=2))
def test_switches_stand_where_a_block_is_cut_off_best(graph):
    switches = range(graph.num_compute, graph.num_nodes)
    chosen = [list(itertools.combinations(switches, size)) for size in range(len(switches) + 1)]
    found = strength(graph)
    least = {}
    for blocks in partitions(list(range(graph.num_compute))):
        for block in map(tuple, blocks):
            least[block] = min(leaving(graph, [*block, *more]) for more in itertools.chain(*chosen))
    wanted = min(
        Fraction(sum(least[tuple(block)] for block in blocks), 2 * (len(blocks) - 1))
        for blocks in partitions(list(range(graph.num_compute)))
        if len(blocks) > 1
    )
    assert found.value == wanted
    assert found.value == Fraction(
        sum(leaving(graph, side) for side in found.sides), 2 * (len(found.blocks) - 1)
    )


@given(duplex_graphs(), st.randoms())
def test_rates_do_not_depend_on_numbers_of_nodes(graph, random):
    names = random.sample(range(graph.num_nodes), graph.num_nodes)
    other = renumbered(graph, names)
    assert strength(other).value == strength(graph).value
    assert all_gather_rate(other).value == all_gather_rate(graph).value
    assert broadcast_rate(other, names[0]).value == broadcast_rate(graph, 0).value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Nash-Williams' rate in links, computed with exact solvers in 2026-11.
        ("mesh:4x4", "8/5"),
        ("mesh:5x5", "5/3"),
        ("mesh:6x6", "12/7"),
        ("mesh:8x8", "16/9"),
        ("mesh:16x16", "32/17"),
        ("mesh:5x5x5", "75/31"),
        ("torus:8x8", "128/63"),
        ("torus:4x4x4", "64/21"),
        ("dgx1v", "24/7"),
        ("dgx1p", "16/7"),
    ],
)
def test_strength_of_well_known_networks(text, value):
    assert strength(graph_of(text)).value == Fraction(value)


def test_the_packages_of_an_mi250_are_its_weakest_partition():
    graph = graph_of("mi250")
    found = strength(graph)
    assert found.value * graph.unit == Fraction(1200, 7) * 10**9
    assert found.blocks == tuple((2 * package, 2 * package + 1) for package in range(8))


@pytest.mark.parametrize("text", MACHINES)
def test_all_gather_of_machines(text):
    graph = graph_of(text)
    assert (
        graph.num_compute * all_gather_rate(graph).value * graph.unit == MACHINES[text][0] * 10**9
    )


@pytest.mark.parametrize("ports", [2, 5, 16])
def test_one_switch_carries_half_of_n_over_n_less_one(ports):
    assert strength(graph_of(f"switch:{ports}")).value == Fraction(ports, 2 * (ports - 1))


def test_an_unreachable_node_is_named_with_the_cut():
    graph = graph_from(4, [(0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1), (2, 0, 1)])
    with pytest.raises(InputError, match=r"node 2 cannot be reached: .* leaves the nodes 0, 1;"):
        broadcast_rate(graph, 0)
    with pytest.raises(InputError, match=r"node 2 cannot be reached: .* leaves the nodes 0, 1;"):
        all_gather_rate(graph)
    halves = graph_from(4, [(0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1)])
    with pytest.raises(InputError, match=r"node 2 cannot be reached"):
        strength(halves)


def test_strength_needs_links_with_one_capacity_both_ways():
    with pytest.raises(InputError, match="differ by direction"):
        strength(graph_from(2, [(0, 1, 1), (1, 0, 2)]))


def test_one_node_has_no_rate():
    with pytest.raises(InputError, match="one node"):
        broadcast_rate(graph_from(1, []), 0)


@pytest.mark.parametrize("weights", [[1], [0, 0], [-1, 2]])
def test_weights_that_say_nothing_are_refused(weights):
    with pytest.raises(InputError, match="weights"):
        all_gather_rate(graph_from(2, [(0, 1, 1), (1, 0, 1)]), weights)


def test_links_of_several_planes_add_up_exactly() -> None:
    graph = CapacityGraph.of(
        parse_topology("fc:3?bandwidth=0.1GB/s+switch:3?bandwidth=0.2GB/s+fc:3?bandwidth=0.7GB/s")
    )
    assert graph.num_arcs == 6 + 6
    assert broadcast_rate(graph, 0).value * graph.unit == Fraction(18, 10) * 10**9
