"""The search that follows all starts at once against the hops from each."""

from __future__ import annotations

import numpy as np
from collhub_topologies.summary import compute_longest_distance
from hypothesis import given
from hypothesis import strategies as st

from hub_core.columns import Arcs

NODES = 7
ARCS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=20)
SOME_NODES = st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4, unique=True)


def _arcs(pairs: list[tuple[int, int]]) -> Arcs:
    columns = np.asarray(pairs, np.int64).reshape(-1, 2)
    return Arcs(NODES, columns[:, 0], columns[:, 1])


@given(ARCS, SOME_NODES, st.integers(1, NODES))
def test_the_farthest_goal_is_the_longest_of_the_shortest_paths(pairs, starts, goals):
    arcs = _arcs(pairs)
    hops = arcs.hops(np.asarray(starts))[:, :goals]
    found = compute_longest_distance(arcs, np.asarray(starts), goals, 1 << 30)
    if hops.min() < 0:
        assert found is None
    else:
        assert found is not None
        assert found[0] == hops.max()


def test_a_search_for_the_farthest_stops_at_the_limit_of_work():
    ring = [(node, (node + 1) % NODES) for node in range(NODES)]
    starts = np.arange(NODES)
    assert compute_longest_distance(_arcs(ring), starts, NODES, 1 << 20) is not None
    assert compute_longest_distance(_arcs(ring), starts, NODES, 10) is None
