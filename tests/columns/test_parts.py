"""Parts of graphs, against plain ways."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hub_core.columns import chain_cover, connected_parts, values_of_single_keys

NODES = 12
EDGES = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).map(sorted), max_size=20
)


def _columns(edges: list[list[int]]) -> np.ndarray:
    return np.array(edges, np.int64).reshape(-1, 2).T


def _plain_parts(edges: list[list[int]]) -> list[int]:
    """Names spread over one edge after the other until nothing changes."""
    names = list(range(NODES))
    for _ in range(NODES):
        for one, other in edges:
            names[one] = names[other] = min(names[one], names[other])
    return names


@given(EDGES)
def test_connected_parts_are_named_by_their_first_node(edges):
    assert connected_parts(*_columns(edges), NODES).tolist() == _plain_parts(edges)


@given(EDGES, st.booleans())
def test_chains_follow_edges(edges, is_preferred):
    edges = [edge for edge in edges if edge[0] != edge[1]]
    parents, children = _columns(edges)
    chain = chain_cover(NODES, parents, children, np.full(len(edges), is_preferred))
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
