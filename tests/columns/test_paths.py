"""Searches against the plain ones: a queue, and relaxing arc by arc."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hub_core.columns import Arcs

NODES = 7
ARCS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=20)
WEIGHTS = st.lists(st.integers(0, 9), min_size=20, max_size=20)
SOME_NODES = st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4, unique=True)


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
