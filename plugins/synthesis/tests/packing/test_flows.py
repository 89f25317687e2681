"""Largest flows and least cuts against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_packing.flows import FlowNetwork, scaled
from hypothesis import given
from hypothesis import strategies as st
from packing_checks import directed_graphs, leaving, node_sets

from hub_core.model import InputError


@given(directed_graphs(), st.integers(0, 5), st.integers(1, 5))
def test_the_largest_flow_is_the_least_cut(graph, source, step):
    source %= graph.num_nodes
    sink = (source + 1 + step % (graph.num_nodes - 1)) % graph.num_nodes
    network = FlowNetwork.of(graph.num_nodes, graph.source, graph.destination)
    cut = network.least_cut(graph.capacity, source, [sink])
    wanted = min(
        leaving(graph, side) for side, _ in node_sets(graph) if source in side and sink not in side
    )
    assert cut is not None
    assert (
        cut.value
        == wanted
        == leaving(graph, cut.nodes)
        == network.max_flow(graph.capacity, source, sink)
    )
    assert source in cut.nodes
    assert sink not in cut.nodes


@given(directed_graphs(), st.integers(0, 20))
def test_a_limit_ends_the_search(graph, limit):
    network = FlowNetwork.of(graph.num_nodes, graph.source, graph.destination)
    whole = network.max_flow(graph.capacity, 0, 1)
    assert network.max_flow(graph.capacity, 0, 1, limit) == min(whole, limit)
    assert (network.least_cut(graph.capacity, 0, [1], limit) is None) == (whole >= limit)


@given(directed_graphs())
def test_what_a_flow_leaves_is_balanced(graph):
    network = FlowNetwork.of(graph.num_nodes, graph.source, graph.destination)
    value, left = network.remainder(graph.capacity, 0, 1)
    is_one_way = ~np.isin(
        graph.source * 9 + graph.destination, graph.destination * 9 + graph.source
    )
    if is_one_way.all():
        flow = graph.capacity - left
        net = np.bincount(graph.destination, flow, graph.num_nodes) - np.bincount(
            graph.source, flow, graph.num_nodes
        )
        assert net.tolist() == [-value, value, *[0] * (graph.num_nodes - 2)]
    assert left.min() >= 0


def test_parallel_arcs_add_up():
    network = FlowNetwork.of(2, np.asarray([0, 0, 1]), np.asarray([1, 1, 0]))
    assert network.max_flow(np.asarray([3, 4, 5]), 0, 1) == 7


def test_of_many_sinks_the_weakest_counts():
    # A line 0 -> 1 -> 2 with capacities 5 and 2, and an arc back.
    network = FlowNetwork.of(3, np.asarray([0, 1, 2]), np.asarray([1, 2, 0]))
    cut = network.least_cut(np.asarray([5, 2, 9]), 0, [1, 2])
    assert cut is not None
    assert (cut.value, cut.sink, cut.nodes) == (2, 2, (0, 1))


def test_capacities_beyond_the_range_are_refused():
    network = FlowNetwork.of(2, np.asarray([0]), np.asarray([1]))
    with pytest.raises(InputError, match="add up"):
        network.max_flow(np.asarray([1 << 61]), 0, 1)
    with pytest.raises(InputError, match="too fine"):
        scaled(np.asarray([1 << 40, 1 << 40]), 1 << 20)
