"""Time of a plan on a topology by its own account, where no simulator is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.message_plan import MessagePlan
from collhub_classic.task import ClassicTask
from hub_core.model import CollectiveKind
from hub_core.network import Topology


def link_of_message(topology: Topology, npus: Sequence[int]) -> tuple[float, float]:
    """Alpha in seconds and beta in seconds per byte of a message: means of the ways from rank 0."""
    place = np.asarray(npus, np.int64)
    others = place[1:] if len(place) > 1 else place
    routes = topology.routes(np.full(len(others), place[0]), others)
    way = np.repeat(np.arange(len(others)), np.diff(routes.indptr))
    latency = np.bincount(way, topology.latency_s[routes.links], len(others))
    slowest = np.zeros(len(others))
    np.maximum.at(slowest, way, 1 / topology.bandwidth_bytes_per_s[routes.links])
    return float(latency.mean()), float(slowest.mean())


def estimated_ns(plan: MessagePlan, task: ClassicTask) -> int:
    """Nanoseconds, rounded up, if all ranks ended every round together.

    A message takes, link by link, the latency and the time of all messages of its round that use
    the link: so much it takes at most.
    """
    place = np.asarray(task.npus, np.int64)
    unit = task.collective_bytes / _units(plan, task)
    total = 0.0
    for start, stop in _rounds(plan):
        rows = slice(start, stop)
        routes = task.topology.routes(place[plan.source[rows]], place[plan.destination[rows]])
        message = np.repeat(np.arange(stop - start), np.diff(routes.indptr))
        sizes = plan.counts[rows] * unit
        load = np.bincount(routes.links, sizes[message], task.topology.num_links)
        busy = load / task.topology.bandwidth_bytes_per_s + task.topology.latency_s
        total += float(np.bincount(message, busy[routes.links]).max())
    return max(1, ceil(total * 1e9))


def _units(plan: MessagePlan, task: ClassicTask) -> int:
    """Blocks that the full buffer has."""
    # An all-to-all has blocks for every pair.
    is_square = task.kind is CollectiveKind.ALL_TO_ALL
    return plan.num_blocks // task.num_ranks if is_square else plan.num_blocks


def _rounds(plan: MessagePlan) -> list[tuple[int, int]]:
    """First message and end of every round."""
    ends: Int64Array = np.flatnonzero(np.diff(plan.round)) + 1
    cuts = [0, *ends.tolist(), len(plan)]
    return list(pairwise(cuts))
