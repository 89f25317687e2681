"""Estimate the time of a plan on a topology in the alpha-beta model, without a simulator.

Hockney's model with shared links: a message takes the latency and the time for the bytes of its
round on each link of its route. Large plans are sampled: some rounds, and some messages of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np

from collhub_classic.message_plan import MessagePlan
from collhub_classic.task import ClassicTask
from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind
from hub_core.network import Topology


def compute_mean_link(topology: Topology, npus: Sequence[int]) -> tuple[float, float]:
    """Compute alpha in s and beta in s per byte of a message: means over the routes from rank 0.

    Beta is that of the slowest link of a route.
    """
    npu_of = np.asarray(npus, np.int64)
    targets = npu_of[1:] if len(npu_of) > 1 else npu_of
    routes = topology.routes(np.full(len(targets), npu_of[0]), targets)
    route = np.repeat(np.arange(len(targets)), np.diff(routes.indptr))
    latency = np.bincount(route, topology.latency_s[routes.links], len(targets))
    slowest = np.zeros(len(targets))
    np.maximum.at(slowest, route, 1 / topology.bandwidth_bytes_per_s[routes.links])
    return float(latency.mean()), float(slowest.mean())


MAX_ESTIMATE_MESSAGES = 2_000
"""Messages that are routed for a quick estimate, which takes some milliseconds."""


def estimate_ns(plan: MessagePlan, task: ClassicTask, max_messages: int | None = None) -> int:
    """Estimate the time in ns, rounded up, if all ranks finished every round together.

    A message takes, link by link, the latency and the time of all messages of its round on the
    link, which is an upper limit. `max_messages`: approximate number of messages that are routed,
    evenly spaced in the plan, as a sample; None for all.
    """
    npu_of = np.asarray(task.npus, np.int64)
    unit = task.collective_bytes / _count_blocks(plan, task)
    total = 0.0
    rounds = _find_rounds(plan)
    sampling_step = 1 if max_messages is None else max(1, len(plan) // max_messages)
    # Skip rounds first, since most are equal; then messages within large rounds.
    round_step = min(sampling_step, len(rounds))
    message_step = max(1, sampling_step // round_step)
    for start, stop in rounds[::round_step]:
        rows = slice(start, stop, message_step)
        routes = task.topology.routes(npu_of[plan.source[rows]], npu_of[plan.destination[rows]])
        message = np.repeat(np.arange(len(routes.indptr) - 1), np.diff(routes.indptr))
        sizes = plan.counts[rows] * (unit * message_step)
        load = np.bincount(routes.links, sizes[message], task.topology.num_links)
        busy = load / task.topology.bandwidth_bytes_per_s + task.topology.latency_s
        total += float(np.bincount(message, busy[routes.links]).max())
    sampled = len(rounds[::round_step])
    return max(1, ceil(total * len(rounds) / max(1, sampled) * 1e9))


def _count_blocks(plan: MessagePlan, task: ClassicTask) -> int:
    """Count the blocks of one rank's full buffer."""
    is_square = task.kind is CollectiveKind.ALL_TO_ALL
    return plan.num_blocks // task.num_ranks if is_square else plan.num_blocks


def _find_rounds(plan: MessagePlan) -> list[tuple[int, int]]:
    """Find the first message and the end of every round."""
    boundaries: Int64Array = np.flatnonzero(np.diff(plan.round)) + 1
    cuts = [0, *boundaries.tolist(), len(plan)]
    return list(pairwise(cuts))
