"""Searches against the plain ones: a queue, and relaxing arc by arc."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hub_core.network import FAR, Arcs

NODES = 7
ARCS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=20)
WEIGHTS = st.lists(st.integers(0, 9), min_size=20, max_size=20)
SOME_NODES = st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4, unique=True)


def _arcs(pairs: list[tuple[int, int]]) -> Arcs:
    columns = np.asarray(pairs, np.int64).reshape(-1, 2)
    return Arcs(NODES, columns[:, 0], columns[:, 1])


def _plain_hops(pairs: list[tuple[int, int]], starts: list[int]) -> list[int]:
    hops = [0 if node in starts else -1 for node in range(NODES)]
    waiting = deque(starts)
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
    arcs = _arcs(pairs)
    assert arcs.hops_from(np.asarray(starts)).tolist() == _plain_hops(pairs, starts)
    table = [_plain_hops(pairs, [start]) for start in starts]
    assert arcs.hops(np.asarray(starts)).tolist() == table


@given(ARCS, st.integers(0, NODES - 1), st.integers(0, NODES - 1))
def test_a_shortest_path_leads_from_start_to_goal(pairs, start, goal):
    path = _arcs(pairs).shortest_path(start, goal)
    hops = _plain_hops(pairs, [start])[goal]
    if path is None:
        assert hops == -1
        return
    assert len(path) == hops
    node = start
    for arc in path.tolist():
        assert pairs[arc][0] == node
        assert pairs.index(pairs[arc]) == arc, "of parallel arcs the first is taken"
        node = pairs[arc][1]
    assert node == goal


@given(ARCS, WEIGHTS, SOME_NODES)
def test_lengths_are_those_of_relaxing_arc_by_arc(pairs, weights, starts):
    arcs = _arcs(pairs)
    weight = np.asarray(weights[: len(pairs)], np.int64)
    plain = [_plain_lengths(pairs, weights, start) for start in starts]
    found = arcs.lengths(np.asarray(starts), weight)
    whole = np.where(found >= FAR, np.inf, found)
    assert whole.tolist() == plain
    is_start = np.isin(np.arange(NODES), starts)
    nearest = arcs.lengths_from(is_start, weight.astype(np.float64))
    assert nearest.tolist() == np.min(plain, axis=0).tolist()


@given(ARCS, SOME_NODES, st.integers(1, NODES))
def test_the_farthest_goal_is_the_longest_of_the_shortest_paths(pairs, starts, goals):
    hops = [_plain_hops(pairs, [start])[:goals] for start in starts]
    found = _arcs(pairs).farthest(np.asarray(starts), goals, 1 << 30)
    if min(map(min, hops)) < 0:
        assert found is None
    else:
        assert found is not None
        assert found[0] == max(map(max, hops))


def test_a_search_for_the_farthest_stops_at_the_limit_of_work():
    ring = [(node, (node + 1) % NODES) for node in range(NODES)]
    starts = np.arange(NODES)
    assert _arcs(ring).farthest(starts, NODES, 1 << 20) is not None
    assert _arcs(ring).farthest(starts, NODES, 10) is None
