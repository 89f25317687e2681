"""All-reduce at the strength of a network: orientations and the trees that follow."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from collhub_packing import SwitchSpread, broadcast_rate, strength
from collhub_packing.collective_packings import all_reduce_packing, all_reduce_trees, orient_links
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_checks import check_routes, check_trees, duplex_graphs, graph_from, graph_of

from hub_core.model import InputError


@given(duplex_graphs(), st.randoms())
def test_half_of_every_link_each_way_becomes_a_full_rate_from_the_root(graph, random):
    order = random.sample(range(graph.num_nodes), graph.num_nodes)
    rate = strength(graph)
    directed, scale = orient_links(graph, rate, order)
    assert scale == rate.value.denominator
    assert broadcast_rate(directed, order[0]).value == rate.value * scale
    share = {
        (u, v): c
        for u, v, c in zip(directed.source, directed.destination, directed.capacity, strict=True)
    }
    for u, v, c in zip(graph.source, graph.destination, graph.capacity, strict=True):
        assert share[u, v] + share[v, u] == c * scale


@given(duplex_graphs(), st.integers(0, 5))
def test_trees_reach_the_strength_in_both_directions_at_once(graph, seed):
    packing = all_reduce_packing(graph, seeds=1, first_seed=seed)
    sent = check_trees(packing.network.graph, packing.trees, both_ways=True)
    assert sum(sent.values()) == packing.strength.value * packing.scale
    check_routes(packing.network, packing.trees, graph, Fraction(packing.scale), both_ways=True)


@settings(max_examples=40)
@given(duplex_graphs(most_nodes=5, switches=3), st.sampled_from(SwitchSpread))
def test_trees_past_switches_reach_the_strength_too(graph, spread):
    packing = all_reduce_packing(graph, spread=spread, seeds=1)
    sent = check_trees(packing.network.graph, packing.trees, both_ways=True)
    assert sum(sent.values()) == packing.strength.value * packing.scale
    check_routes(packing.network, packing.trees, graph, Fraction(packing.scale), both_ways=True)


@settings(max_examples=40)
@given(duplex_graphs(most_nodes=5, switches=2), st.integers(1, 4))
def test_a_coarser_scale_gives_the_best_rate_below_the_strength(graph, scale):
    if strength(graph).value * scale < 1:
        with pytest.raises(InputError, match="above the rate"):
            all_reduce_packing(graph, scale=scale, seeds=1)
        return
    packing = all_reduce_packing(graph, scale=scale, seeds=1)
    assert packing.scale in (scale, 2 * scale)
    assert packing.rate == Fraction(
        math.floor(packing.strength.value * packing.scale), packing.scale
    )
    check_trees(packing.network.graph, packing.trees, both_ways=True)
    check_routes(packing.network, packing.trees, graph, Fraction(packing.scale), both_ways=True)


def test_whole_links_make_few_trees_of_an_eight_gpu_machine():
    packing = all_reduce_packing(graph_of("dgx1v"), scale=1)
    assert packing.rate == 3
    assert len(packing.trees) <= 3


@pytest.mark.parametrize(
    ("text", "most_trees", "most_depth"),
    # No more and no deeper than a public description of the method found for its own trees in
    # 2026-11.
    [
        ("dgx1v", 8, 7),
        ("dgx1p", 8, 6),
        ("mi250", 9, 13),
        ("mesh:4x4", 6, 9),
        ("mesh:8x8", 10, 31),
        ("mesh:5x5x5", 22, 40),
    ],
)
def test_well_known_networks_need_few_flat_trees(text, most_trees, most_depth):
    graph = graph_of(text)
    rate, trees = all_reduce_trees(graph)
    assert sum(tree.weight for tree in trees) == rate.value.numerator
    assert len(trees) <= most_trees
    assert max(tree.depth for tree in trees) <= most_depth


def test_each_tree_is_rooted_at_its_centre():
    _, trees = all_reduce_trees(graph_of("mesh:1x9"))
    assert [(tree.root, tree.depth) for tree in trees] == [(4, 4)]


def test_trees_of_links_are_refused_where_there_are_switches():
    with pytest.raises(InputError, match="switches"):
        all_reduce_trees(graph_of("switch:4"))


def test_an_order_names_every_node():
    graph = graph_from(2, [(0, 1, 1), (1, 0, 1)])
    with pytest.raises(InputError, match="order"):
        orient_links(graph, strength(graph), [0])
