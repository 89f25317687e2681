"""Times of steps if each has a separate thread block and channel, and only links are shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission_order import Arrangement, arrange
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.work_graph import WorkGraph

_NO_ROWS = np.zeros(0, np.int64)


def arrange_freely(draft: StepDraft, joined: Edges, is_free: bool) -> Arrangement | None:
    """Arrange the rows with these pairs fused if possible; None if no order exists.

    `is_free`: channels are open, so every message is a separate connection.
    """
    if is_free:
        separate_channel = np.minimum(np.arange(len(draft)), draft.partner)
        draft = replace(draft, channel=separate_channel)
    return arrange(draft, _NO_ROWS, _NO_ROWS, joined)


def compute_ideal_begins(graph: WorkGraph, is_free: bool) -> list[int]:
    """Time at which every node begins if it has a separate block."""
    if is_free:
        graph = replace(graph, channel=_number_chains(graph))
    nodes = list(range(len(graph)))
    scheduler = ListScheduler(graph, nodes, len(nodes), len(nodes))
    return graph.start if scheduler.schedule() is None else scheduler.begin


def _number_chains(graph: WorkGraph) -> list[int]:
    """Separate channel number for every message together with the steps that forward it."""
    numbers = list(range(len(graph)))
    # Nodes are in a possible order of execution, so senders come first.
    for node, source in enumerate(graph.source):
        if source >= 0:
            numbers[node] = numbers[source]
    return numbers
