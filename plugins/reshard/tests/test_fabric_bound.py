"""Bounds by weights of links: below every tree, exact on cuts that are counted by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from collhub_reshard import parse_move, unit_tasks
from collhub_reshard.fabric_links import (
    FabricLinks,
    bound_tree_cost,
    build_cheap_tree,
    compute_proved_bound_s,
    find_best_bound,
    find_cheapest_paths,
    group_deliveries,
)
from hypothesis import given
from hypothesis import strategies as st

from hub_core.network import Topology

PLACES = 5
costs = st.lists(st.integers(0, 9), min_size=PLACES**2, max_size=PLACES**2)


def _cheapest(table: np.ndarray, sender: int, receivers: tuple[int, ...]) -> int:
    """The cheapest tree by trying all sets of edges: every receiver reached from the sender."""
    pairs = [(a, b) for a in range(PLACES) for b in range(PLACES) if a != b and b != sender]
    best = 10**6
    for size in range(1, PLACES):
        for edges in combinations(pairs, size):
            cost = sum(int(table[edge]) for edge in edges)
            if cost < best and _reaches(edges, sender, receivers):
                best = cost
    return best


def _reaches(edges, sender: int, receivers: tuple[int, ...]) -> bool:
    reached = {sender}
    for _ in edges:
        reached |= {b for a, b in edges if a in reached}
    return reached.issuperset(receivers)


@given(costs, st.sets(st.integers(1, PLACES - 1), min_size=1, max_size=3))
def test_dual_ascent_is_never_above_the_cheapest_tree(flat, receivers) -> None:
    table = np.asarray(flat, np.int64).reshape(PLACES, PLACES)
    goals = tuple(sorted(receivers))
    bound = bound_tree_cost(table, [0], goals)
    cheapest = _cheapest(table, 0, goals)
    assert bound <= cheapest
    best, before = find_cheapest_paths(table.astype(np.float64))
    found = sum(int(table[edge]) for edge in build_cheap_tree(best, before, [0], goals))
    assert found >= cheapest
    if len(goals) == 1:
        assert bound == cheapest == found


def _two_sides(uplink: float) -> Topology:
    """NPUs 0 and 1 on switch 4, NPUs 2 and 3 on switch 5, 10 B/s each; an uplink of another."""
    ends = [(0, 4), (1, 4), (2, 5), (3, 5)]
    links = [(a, b, 10.0) for a, b in ends] + [(b, a, 10.0) for a, b in ends]
    links += [(4, 5, uplink), (5, 4, uplink)]
    source, destination, rate = zip(*links, strict=True)
    return Topology(
        "two sides",
        4,
        6,
        np.asarray(source),
        np.asarray(destination),
        np.asarray(rate),
        np.zeros(len(links)),
    )


@pytest.mark.parametrize(("uplink", "seconds"), [(5.0, 24), (10.0, 12), (20.0, 6), (30.0, 6)])
def test_an_uplink_bounds_what_crosses_it(uplink: float, seconds: int) -> None:
    # 120 bytes cross, 60 into each receiver.
    move = parse_move("120:int8", "mesh(1,2)@0-1: S1", "mesh(1,2)@2-3: S1", host_size=2)
    deliveries = group_deliveries(unit_tasks([move]))
    fabric = FabricLinks.of(_two_sides(uplink), range(4))
    cut = compute_proved_bound_s(fabric, deliveries, {8: 1})
    assert cut == Fraction(120) / Fraction(uplink)
    prices = [np.eye(10)[8], np.eye(10)[6]]
    assert find_best_bound(fabric, deliveries, prices).time_s == seconds


def test_weights_of_links_that_nothing_needs_prove_nothing() -> None:
    move = parse_move("120:int8", "mesh(1,2)@0-1: S1", "mesh(1,2)@2-3: S1", host_size=2)
    deliveries = group_deliveries(unit_tasks([move]))
    fabric = FabricLinks.of(_two_sides(5.0), range(4))
    assert compute_proved_bound_s(fabric, deliveries, {9: 7}) == 0
    assert compute_proved_bound_s(fabric, deliveries, {}) == 0
