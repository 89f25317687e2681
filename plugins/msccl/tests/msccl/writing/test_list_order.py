"""The order that list scheduling gives the steps of thread blocks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from collhub_msccl.writing.draft import arrange, build_draft
from collhub_msccl.writing.work_graph import ListScheduler, WorkGraph, build_work_graph

from hub_core.testing import CustomSteps

MESSAGES = 5


def _exchange() -> WorkGraph:
    """Two ranks send each other five units."""
    steps = CustomSteps(2, MESSAGES)
    for rank in (0, 1):
        for unit in range(MESSAGES):
            steps.send(rank, 1 - rank, unit)
        for unit in range(MESSAGES):
            steps.receive(rank, 1 - rank, unit)
    draft = build_draft(steps.algorithm(scratch_units=0), with_control=False)
    nothing = np.zeros(0, np.int64)
    arrangement = arrange(draft, nothing, nothing, (nothing, nothing))
    assert arrangement is not None
    return build_work_graph(draft, arrangement, latency=0)


def _most_under_way(graph: WorkGraph, order: list[int]) -> int:
    """The most messages of a connection that are sent and not received, in this order."""
    under_way: Counter[int] = Counter()
    most = 0
    for node in order:
        if graph.target[node] >= 0:
            under_way[graph.rank[node]] += 1
        else:
            under_way[graph.recv[node]] -= 1
        most = max(most, *under_way.values())
    return most


@pytest.mark.parametrize(("capacity", "most"), [(1, 1), (3, 3), (8, MESSAGES)])
def test_no_connection_holds_more_messages_than_it_has_place_for(capacity: int, most: int) -> None:
    graph = _exchange()
    # One thread block a rank does both directions, so that it can send before it receives.
    order = ListScheduler(graph, graph.rank, 2, capacity).schedule()
    assert order is not None
    assert sorted(order) == list(range(4 * MESSAGES))
    assert _most_under_way(graph, order) == most
