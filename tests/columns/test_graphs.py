"""Searches on graphs, components and covers, compared with simple loops."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hub_core.columns import Arcs, NodePairs, chain_cover, connected_parts, values_of_single_keys
from hub_core.columns import arcs as arcs_module

NODES = 7
ARCS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=20)
WEIGHTS = st.lists(st.integers(0, 9), min_size=20, max_size=20)
SOME_NODES = st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4, unique=True)
MANY_NODES = 12
EDGES = st.lists(
    st.tuples(st.integers(0, MANY_NODES - 1), st.integers(0, MANY_NODES - 1)).map(sorted),
    max_size=20,
)


def _arcs(pairs: list[tuple[int, int]]) -> Arcs:
    columns = np.asarray(pairs, np.int64).reshape(-1, 2)
    return Arcs(NODES, columns[:, 0], columns[:, 1])


def _plain_hops(pairs: list[tuple[int, int]], start: int) -> list[int]:
    hops = [0 if node == start else -1 for node in range(NODES)]
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for tail, head in pairs:
            if tail == node and hops[head] < 0:
                hops[head] = hops[node] + 1
                waiting.append(head)
    return hops


def _plain_lengths(pairs: list[tuple[int, int]], weights: list[int], start: int) -> list[float]:
    length = [0.0 if node == start else float("inf") for node in range(NODES)]
    for _ in range(NODES):
        for (tail, head), weight in zip(pairs, weights, strict=False):
            length[head] = min(length[head], length[tail] + weight)
    return length


@given(ARCS, SOME_NODES)
def test_hops_are_those_of_a_queue(pairs, starts):
    table = [_plain_hops(pairs, start) for start in starts]
    assert _arcs(pairs).hops(np.asarray(starts)).tolist() == table


@given(ARCS, WEIGHTS, SOME_NODES)
def test_lengths_are_those_of_relaxing_arc_by_arc(pairs, weights, starts):
    weight = np.asarray(weights[: len(pairs)], np.float64)
    plain = [_plain_lengths(pairs, weights, start) for start in starts]
    is_start = np.isin(np.arange(NODES), starts)
    nearest = _arcs(pairs).lengths_from(is_start, weight)
    assert nearest.tolist() == np.min(plain, axis=0).tolist()


def test_lengths_on_a_ring_relax_the_arcs_of_changed_nodes_only(monkeypatch) -> None:
    """All arcs in every round took 150 s on a ring of 100000 nodes."""
    size = 400
    nodes = np.arange(size)
    arcs = Arcs(size, np.tile(nodes, 2), np.concatenate([(nodes + 1) % size, nodes - 1]) % size)
    weight = np.concatenate([np.ones(size), np.full(size, 3.0)])
    expected = np.minimum(nodes, 3.0 * ((-nodes) % size))
    assert arcs.lengths_from(nodes == 0, weight).tolist() == expected.tolist()
    monkeypatch.setattr(arcs_module, "_NODES_PER_CHANGE", size + 1)
    assert arcs.lengths_from(nodes == 0, weight).tolist() == expected.tolist()
    random = np.random.default_rng(3)
    scattered = Arcs(size, *random.integers(0, size, (2, 3 * size)))
    weight_of_arc = random.random(3 * size)
    by_nodes = scattered.lengths_from(nodes == 0, weight_of_arc)
    monkeypatch.setattr(arcs_module, "_NODES_PER_CHANGE", 16)
    assert np.array_equal(scattered.lengths_from(nodes == 0, weight_of_arc), by_nodes)
    monkeypatch.setattr(arcs_module, "_NODES_PER_CHANGE", 1)
    assert np.array_equal(scattered.lengths_from(nodes == 0, weight_of_arc), by_nodes)
    one = np.where(nodes == 0, 0.0, np.inf)[:, None]
    assert np.array_equal(scattered.shorten(one, weight_of_arc)[:, 0], by_nodes)
    # One search per column: all arcs in every round.
    both = np.full((size, 2), np.inf)
    both[0, 0] = both[1, 1] = 0.0
    lengths = arcs.shorten(both, weight).T.tolist()
    assert lengths == [expected.tolist(), np.roll(expected, 1).tolist()]


def _columns(edges: list[list[int]]) -> np.ndarray:
    return np.array(edges, np.int64).reshape(-1, 2).T


def _plain_parts(edges: list[list[int]]) -> list[int]:
    """Names spread over one edge after the other until nothing changes."""
    names = list(range(MANY_NODES))
    for _ in range(MANY_NODES):
        for one, other in edges:
            names[one] = names[other] = min(names[one], names[other])
    return names


@given(EDGES)
def test_connected_parts_are_named_by_their_first_node(edges):
    assert connected_parts(*_columns(edges), MANY_NODES).tolist() == _plain_parts(edges)


@given(EDGES, st.booleans())
def test_chains_follow_edges(edges, is_preferred):
    edges = [edge for edge in edges if edge[0] != edge[1]]
    parents, children = _columns(edges)
    chain = chain_cover(MANY_NODES, parents, children, np.full(len(edges), is_preferred))
    for name in set(chain.tolist()):
        members = np.flatnonzero(chain == name).tolist()
        assert members[0] == name
        assert all(list(pair) in edges for pair in pairwise(members))


def test_a_preferred_parent_wins_over_a_later_one():
    parents, children = np.array([0, 1]), np.array([2, 2])
    chain = chain_cover(3, parents, children, np.array([True, False]))
    assert chain.tolist() == [0, 1, 0]


def test_values_of_keys_that_occur_twice_are_not_told():
    found = values_of_single_keys(4, np.array([0, 1, 1]), np.array([5, 6, 7]))
    assert found.tolist() == [5, -1, -1, -1]


def _pairs(*links: tuple[int, int, int, float, float]) -> NodePairs:
    """Links as (source, destination, plane, bandwidth, latency) among four nodes."""
    source, destination, plane, bandwidth, latency = (
        np.asarray(c) for c in zip(*links, strict=True)
    )
    return NodePairs(
        SimpleNamespace(
            num_nodes=4,
            source=source.astype(np.int64),
            destination=destination.astype(np.int64),
            plane=plane.astype(np.int64),
            bandwidth_bytes_per_s=bandwidth.astype(np.float64),
            latency_s=latency.astype(np.float64),
        )
    )


def test_parallel_links_add_up_and_the_fastest_gives_the_latency() -> None:
    pairs = _pairs((0, 1, 0, 5.0, 2.0), (0, 1, 0, 7.0, 1.0), (2, 3, 0, 1.0, 1.0))
    assert len(pairs) == 2
    assert pairs.count.tolist() == [2, 1]
    assert pairs.bandwidth_bytes_per_s.tolist() == [12.0, 1.0]
    assert pairs.latency_s.tolist() == [1.0, 1.0]


def test_the_way_back_is_on_the_same_plane() -> None:
    pairs = _pairs((0, 1, 0, 5.0, 1.0), (1, 0, 0, 5.0, 1.0), (1, 0, 1, 5.0, 1.0))
    assert pairs.back.tolist() == [1, 0, -1]


def test_ways_back_that_differ_are_told() -> None:
    pairs = _pairs(
        (0, 1, 0, 5.0, 1.0), (1, 0, 0, 6.0, 1.0), (2, 3, 0, 1.0, 1.0), (3, 2, 0, 1.0, 1.0)
    )
    assert pairs.differs_from_back().tolist() == [True, True, False, False]
