"""The order that list scheduling gives the steps of thread blocks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from collhub_msccl.writing.draft import draft_of
from collhub_msccl.writing.emission_order import arrange
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.work_graph import WorkGraph, work_graph

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    CustomContract,
    StepKind,
    StepTableBuilder,
)

MESSAGES = 5


def _exchange() -> WorkGraph:
    """Two ranks send each other five units."""
    builder = StepTableBuilder(2)
    for rank in (0, 1):
        for unit in range(MESSAGES):
            place = {"src_buffer": Buffer.INPUT, "src_offset": unit}
            builder.add(rank, StepKind.SEND, count=1, peer=1 - rank, **place)
        for unit in range(MESSAGES):
            place = {"dst_buffer": Buffer.OUTPUT, "dst_offset": unit}
            builder.add(rank, StepKind.RECV, count=1, peer=1 - rank, **place)
    sizes = np.full(2, MESSAGES, np.int64)
    contract = CustomContract(sizes, sizes, np.ones(2, np.bool_))
    kind = CollectiveKind.CUSTOM
    collective = Collective(kind, 2, MESSAGES, None, False, True, contract=contract)
    algorithm = Algorithm(collective, builder.build(), np.zeros(2, np.int64))
    draft = draft_of(algorithm, with_control=False)
    nothing = np.zeros(0, np.int64)
    arrangement = arrange(draft, nothing, nothing, (nothing, nothing))
    assert arrangement is not None
    return work_graph(draft, arrangement.position, arrangement.fused_into)


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


@pytest.mark.parametrize(("capacity", "most"), [(1, 1), (8, 2)])
def test_no_connection_holds_more_messages_than_it_has_place_for(capacity: int, most: int) -> None:
    graph = _exchange()
    # One thread block a rank does both directions, so that it can send before it receives.
    order = ListScheduler(graph, graph.rank, 2, capacity).order()
    assert order is not None
    assert sorted(order) == list(range(4 * MESSAGES))
    assert _most_under_way(graph, order) == most
