"""Times of steps that have thread blocks and channels of their own, and share links alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission_order import Arrangement, arrange
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.work_graph import WorkGraph

_NOTHING = np.zeros(0, np.int64)


def arranged(draft: StepDraft, joined: Edges, is_free: bool) -> Arrangement | None:
    """An order with these pairs as one step where that is possible; None where there is no order.

    `is_free`: channels are open, so that every message is a connection of its own.
    """
    if is_free:
        alone = np.minimum(np.arange(len(draft)), draft.partner)
        draft = replace(draft, channel=alone)
    return arrange(draft, _NOTHING, _NOTHING, joined)


def ideal_begins(graph: WorkGraph, is_free: bool) -> list[int]:
    """When every node begins if it has a block of its own."""
    if is_free:
        graph = replace(graph, channel=_chain_numbers(graph))
    nodes = list(range(len(graph)))
    scheduler = ListScheduler(graph, nodes, len(nodes), len(nodes))
    return graph.start if scheduler.order() is None else scheduler.begin


def _chain_numbers(graph: WorkGraph) -> list[int]:
    """A number for every message and all that passes it on, as if it had a channel of its own."""
    numbers = list(range(len(graph)))
    # Nodes stand in a possible order of execution, so those that send are first.
    for node, source in enumerate(graph.source):
        if source >= 0:
            numbers[node] = numbers[source]
    return numbers
