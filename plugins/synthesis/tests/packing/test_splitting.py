"""Switches replaced by direct links: no rate is lost, and what replaces them fits."""

from __future__ import annotations

import pytest
from collhub_packing import (
    SwitchSpread,
    all_gather_rate,
    all_gather_trees,
    fixed_rate,
    fixed_trees,
    without_switches,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_checks import MACHINES, check_routes, check_trees, duplex_graphs, graph_from, graph_of

from hub_core.model import InputError


def times(packing, graph):
    """How many times as large the packing's capacities are."""
    return graph.unit / packing.network.graph.unit


@settings(max_examples=60)
@given(duplex_graphs(most_nodes=5, switches=3), st.sampled_from(SwitchSpread))
def test_trees_past_switches_reach_the_all_gather_rate(graph, spread):
    packing = all_gather_trees(graph, spread=spread, seeds=1)
    assert packing.rate == all_gather_rate(graph)
    assert packing.per_root[0] == packing.rate.value * times(packing, graph)
    assert check_trees(packing.network.graph, packing.trees) == dict(
        enumerate(packing.per_root.tolist())
    )
    check_routes(packing.network, packing.trees, graph, times(packing, graph))


@settings(max_examples=40)
@given(duplex_graphs(most_nodes=5, switches=3), st.data())
def test_nodes_with_more_to_send_get_more_trees(graph, data):
    n = graph.num_compute
    weights = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    packing = all_gather_trees(graph, weights, seeds=1)
    wanted = {
        root: weight * packing.rate.value * times(packing, graph)
        for root, weight in enumerate(weights)
        if weight
    }
    assert check_trees(packing.network.graph, packing.trees) == wanted
    check_routes(packing.network, packing.trees, graph, times(packing, graph))


@settings(max_examples=40)
@given(duplex_graphs(most_nodes=4, switches=2), st.integers(1, 3))
def test_no_smaller_scale_suffices_for_a_fixed_number_of_trees(graph, per_root):
    packing = fixed_trees(graph, per_root, seeds=1)
    assert check_trees(packing.network.graph, packing.trees) == dict.fromkeys(
        range(graph.num_compute), per_root
    )
    check_routes(packing.network, packing.trees, graph, times(packing, graph))
    assert packing.rate.value <= all_gather_rate(graph).value


def test_more_trees_a_root_come_closer_to_the_optimum():
    graph = graph_of("dgx1v")
    rates = [fixed_rate(graph, per_root) for per_root in (1, 2, 6)]
    assert rates[0] < rates[1] < rates[2] == all_gather_rate(graph).value


@pytest.mark.parametrize("text", MACHINES)
def test_machines_need_no_more_trees_than_known(text):
    rate, per_root, of_one, known = MACHINES[text]
    graph = graph_of(text)
    packing = all_gather_trees(graph, seeds=2)
    assert graph.num_compute * packing.rate.value * graph.unit == rate * 10**9
    assert packing.per_root.tolist() == [per_root] * graph.num_compute
    assert check_trees(packing.network.graph, packing.trees) == dict.fromkeys(
        range(graph.num_compute), per_root
    )
    check_routes(packing.network, packing.trees, graph, times(packing, graph))
    # A tree a node is the least, else fewer than known are found.
    assert len(packing.trees) < known or len(packing.trees) == known == graph.num_compute
    if of_one is not None:
        assert graph.num_compute * fixed_rate(graph, 1) * graph.unit == of_one * 10**9


@pytest.mark.parametrize(
    ("text", "spread", "depth"),
    [
        # One hop inside the switch; without spreading, a chain of all GPUs.
        ("dgx2", SwitchSpread.EVERYWHERE, 1),
        ("dgx2", SwitchSpread.NOWHERE, 15),
        # To the GPUs of the same place in all machines, and inside each.
        ("dgx-h100:8", SwitchSpread.EVERYWHERE, 2),
        ("dgx-a100:4", SwitchSpread.WIDEST, 4),
    ],
)
def test_spread_traffic_makes_flat_trees(text, spread, depth):
    packing = all_gather_trees(graph_of(text), spread=spread, seeds=1)
    assert max(tree.depth for tree in packing.trees) == depth
    assert len(packing.trees) == len(packing.per_root)


def test_paths_name_the_rows_of_the_links():
    graph = graph_of("switch:3")
    packing = all_gather_trees(graph, spread=SwitchSpread.EVERYWHERE, seeds=1)
    tree = packing.trees[0]
    for node, rows in packing.network.paths(tree, graph).items():
        ends = [(int(graph.source[row]), int(graph.destination[row])) for row in rows]
        assert ends == [(tree.parent[node], 3), (3, node)]


def test_routes_may_pass_several_switches():
    # Nodes 0 and 1 with a switch each, joined by a link of two thirds of their ports.
    arcs = [(0, 2, 3), (2, 3, 2), (3, 1, 3)]
    graph = graph_from(4, arcs + [(v, u, c) for u, v, c in arcs], 2)
    network = without_switches(graph, [2, 2])
    assert [len(route) for route in network.routes] == [3, 3]
    assert network.graph.capacity.tolist() == [2, 2]


def test_a_switch_with_more_in_than_out_loses_the_excess():
    arcs = [(0, 2, 5), (1, 2, 5), (2, 0, 2), (2, 1, 2)]
    network = without_switches(graph_from(3, arcs, 2), [2, 2])
    assert network.graph.capacity.tolist() == [2, 2]


def test_a_demand_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="does not fit"):
        without_switches(graph_of("switch:4"), [1, 1, 1, 1])


def test_a_switch_that_direct_links_cannot_replace_is_refused():
    # Found by search: five of 600 random networks with one-way links have such a switch.
    arcs = [
        (0, 1, 5),
        (0, 3, 5),
        (1, 0, 3),
        (1, 3, 5),
        (2, 0, 2),
        (2, 1, 2),
        (2, 4, 3),
        (3, 2, 3),
        (3, 4, 4),
        (4, 0, 2),
    ]
    with pytest.raises(InputError, match="differ by direction"):
        all_gather_trees(graph_from(5, arcs, 2))
