"""Time of a plan on a topology in the alpha-beta model, where no simulator is at hand.

Hockney's model with shared links: a message takes latency and the bytes of its round on each link
of its route. Large plans are sampled: some rounds of the plan, and of a round some messages.
"""

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


MESSAGES_OF_AN_ESTIMATE = 2_000
"""Messages that are routed for a quick estimate: some milliseconds."""


def estimated_ns(plan: MessagePlan, task: ClassicTask, most_messages: int | None = None) -> int:
    """Nanoseconds, rounded up, if all ranks ended every round together.

    A message takes, link by link, the latency and the time of all messages of its round that use
    the link: so much it takes at most. `most_messages`: about as many are routed, evenly spaced in
    the plan, and stand for the others; None for all of them.
    """
    place = np.asarray(task.npus, np.int64)
    unit = task.collective_bytes / _units(plan, task)
    total = 0.0
    rounds = _rounds(plan)
    every = 1 if most_messages is None else max(1, len(plan) // most_messages)
    # First fewer rounds, as most are alike; of one round that is too large, fewer messages.
    rounds_apart = min(every, len(rounds))
    apart = max(1, every // rounds_apart)
    for start, stop in rounds[::rounds_apart]:
        rows = slice(start, stop, apart)
        routes = task.topology.routes(place[plan.source[rows]], place[plan.destination[rows]])
        message = np.repeat(np.arange(len(routes.indptr) - 1), np.diff(routes.indptr))
        sizes = plan.counts[rows] * (unit * apart)
        load = np.bincount(routes.links, sizes[message], task.topology.num_links)
        busy = load / task.topology.bandwidth_bytes_per_s + task.topology.latency_s
        total += float(np.bincount(message, busy[routes.links]).max())
    sampled = len(rounds[::rounds_apart])
    return max(1, ceil(total * len(rounds) / max(1, sampled) * 1e9))


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
