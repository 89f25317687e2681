"""Packings of out-trees: as much as the least cut allows, within the capacities, in few trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from collhub_packing import broadcast_rate, pack_arborescences, pack_rooted_trees
from hypothesis import given
from hypothesis import strategies as st
from packing_checks import check_trees, directed_graphs, graph_from, graph_of, renumbered

from hub_core.model import InputError


@given(directed_graphs(), st.integers(0, 5), st.integers(0, 3))
def test_trees_of_one_root_reach_the_broadcast_rate(graph, root, seed):
    root %= graph.num_nodes
    total = int(broadcast_rate(graph, root).value)
    trees = pack_arborescences(graph, root, total, seeds=1, first_seed=seed)
    assert check_trees(graph, trees) == {root: total}


@given(directed_graphs(most_nodes=5), st.data())
def test_trees_of_several_roots_fit_wherever_the_cuts_do(graph, data):
    n = graph.num_nodes
    sent = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    roomy = replace(graph, capacity=graph.capacity * sum(sent))
    trees = pack_rooted_trees(roomy, sent, seeds=1)
    assert check_trees(roomy, trees) == {root: weight for root, weight in enumerate(sent) if weight}


@given(directed_graphs(), st.randoms())
def test_packings_of_a_renumbered_network_fit_it_as_well(graph, random):
    names = random.sample(range(graph.num_nodes), graph.num_nodes)
    other = renumbered(graph, names)
    total = int(broadcast_rate(graph, 0).value)
    assert check_trees(other, pack_arborescences(other, names[0], total, seeds=1)) == {
        names[0]: total
    }


def test_parallel_arcs_are_used_on_their_own():
    graph = graph_from(2, [(0, 1, 3), (0, 1, 4), (1, 0, 1)])
    trees = pack_arborescences(graph, 0, 7, seeds=1)
    assert [(tree.weight, tree.arc.tolist()) for tree in trees] == [(4, [-1, 1]), (3, [-1, 0])]


@pytest.mark.parametrize(
    ("text", "weights"),
    # The fewest there can be: all arcs into a GPU are full, and a tree uses one of them (four on
    # either machine).
    [("dgx1v", [2, 2, 1, 1]), ("dgx1p", [1, 1, 1, 1])],
)
def test_a_broadcast_on_a_dgx1_takes_four_trees(text, weights):
    graph = graph_of(text)
    trees = pack_arborescences(graph, 0, sum(weights), seeds=20)
    assert [tree.weight for tree in trees] == weights


def test_a_thousand_nodes_are_packed():
    graph = graph_of("torus:32x32")
    trees = pack_arborescences(graph, 5, 4, seeds=1)
    assert check_trees(graph, trees) == {5: 4}
    assert len(trees) == 4


def test_the_same_seed_gives_the_same_trees():
    graph = graph_of("dgx1v")
    first, second = (
        pack_rooted_trees(graph, [0, 3, 0, 1, 0, 0, 2, 0], seeds=3, first_seed=7) for _ in range(2)
    )
    assert [(t.root, t.weight, t.arc.tolist()) for t in first] == [
        (t.root, t.weight, t.arc.tolist()) for t in second
    ]


def test_more_seeds_give_no_more_trees():
    graph = graph_of("dgx1v")
    counts = [len(pack_arborescences(graph, 0, 6, seeds=seeds)) for seeds in (1, 4, 16)]
    assert counts == sorted(counts, reverse=True)


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="weight 7 do not fit"):
        pack_arborescences(graph_of("dgx1v"), 0, 7)


def test_switches_are_refused():
    with pytest.raises(InputError, match="without switches"):
        pack_arborescences(graph_of("switch:4"), 0, 1)
