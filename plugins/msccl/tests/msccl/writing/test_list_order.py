"""The order that list scheduling gives the steps of thread blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from collhub_msccl.writing.draft import arrange, build_draft
from collhub_msccl.writing.list_kernels import compile_at_once
from collhub_msccl.writing.placement import PlacementLimits, place_chains
from collhub_msccl.writing.spread import Fusing, arrange_freely, find_fusable_pairs
from collhub_msccl.writing.work_graph import WorkGraph, build_work_graph, schedule_nodes

from hub_core.columns import Int64Array
from hub_core.model import Algorithm
from hub_core.testing import CustomSteps, direct_all_to_all, ring_all_reduce

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
        if graph.nodes.target[node] >= 0:
            under_way[graph.nodes.rank[node]] += 1
        else:
            under_way[graph.recv[node]] -= 1
        most = max(most, *under_way.values())
    return most


@pytest.mark.parametrize(("capacity", "most"), [(1, 1), (3, 3), (8, MESSAGES)])
def test_no_connection_holds_more_messages_than_it_has_place_for(capacity: int, most: int) -> None:
    graph = _exchange()
    # One thread block a rank does both directions, so that it can send before it receives.
    schedule = schedule_nodes(graph, graph.nodes.rank, 2, capacity)
    assert schedule is not None
    order = schedule[0].tolist()
    assert sorted(order) == list(range(4 * MESSAGES))
    assert _most_under_way(graph, order) == most


@pytest.mark.once
@pytest.mark.parametrize("build", [ring_all_reduce, direct_all_to_all], ids=["ring", "direct"])
def test_machine_code_and_plain_python_give_the_same_schedule(
    build: Callable[[int], Algorithm],
) -> None:
    """Small graphs are interpreted and large ones compiled: a file must not depend on that."""
    draft = build_draft(build(5), with_control=False)
    nothing = np.zeros(0, np.int64)
    joined = find_fusable_pairs(draft, True, Fusing.ALL, latency=1)
    arrangement = arrange_freely(draft, joined, True)
    assert arrangement is not None
    graph = build_work_graph(draft, arrangement, latency=1)
    limits = [
        PlacementLimits(blocks, 3, is_free, is_sparing, is_tight)
        for blocks in (2, 16)
        for is_free in (False, True)
        for is_sparing in (False, True)
        for is_tight in (False, True)
    ]

    def run() -> list[list[int]]:
        again = build_work_graph(draft, arrangement, latency=1)
        results: list[tuple[Int64Array, ...]] = [(again.start, again.tail)]
        for capacity in (1, 4):
            results.append(schedule_nodes(graph, graph.nodes.rank, 5, capacity) or ())
        for each in limits:
            placed = place_chains(draft, graph, graph.start, each)
            results.append((placed.block, placed.channel) if placed else ())
        return [np.concatenate([nothing, *result]).tolist() for result in results]

    interpreted = run()
    assert any(interpreted[3:])
    with compile_at_once():
        assert run() == interpreted
