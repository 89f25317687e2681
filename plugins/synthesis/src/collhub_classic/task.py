"""Tasks and results of planners, costs of plans, and estimates of their time on a topology.

A cost is that of the alpha-beta model as textbooks give it. An estimate follows Hockney's model
with shared links: a message takes the latency and the time for the bytes of its round on each link
of its route. Large plans are sampled: some rounds, and some messages of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np

from collhub_classic.message_plan import MessagePlan
from collhub_classic.options import ClassicOptions
from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind
from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class AlphaBetaCost:
    """Cost of an algorithm: the latencies, plus the time to send a multiple of the collective's
    data.

    `alphas`: number of latencies; `betas`: data sent, as a multiple of the collective's data. Exact
    for ranks that finish a round before they begin the next one, if a message takes alpha + bytes *
    beta and the messages that a rank sends through one port follow each other without a gap:
    Hockney's model, with the port as the only shared resource.
    """

    alphas: int
    betas: Fraction

    def __add__(self, other: AlphaBetaCost) -> AlphaBetaCost:
        """Sum of two costs."""
        return AlphaBetaCost(self.alphas + other.alphas, self.betas + other.betas)

    def time_s(self, alpha_s: float, beta_s_per_byte: float, collective_bytes: int) -> float:
        """Time in s of a collective of `collective_bytes` bytes."""
        return self.alphas * alpha_s + float(self.betas) * collective_bytes * beta_s_per_byte

    def __str__(self) -> str:
        """The cost as a formula, with m for the bytes of the collective: `3 alpha + 7/8 m beta`."""
        return f"{self.alphas} alpha + {self.betas} m beta"


def sum_rounds(*shares: Fraction | int) -> AlphaBetaCost:
    """Sum the cost of rounds.

    Each share is the fraction of the data that the busiest port sends.
    """
    return AlphaBetaCost(len(shares), sum((Fraction(share) for share in shares), Fraction(0)))


@dataclass(frozen=True, slots=True)
class ClassicTask:
    """A collective of `num_ranks` ranks with rank 0 as the root; rank r runs on NPU `npus[r]`.

    `alpha_s`, `beta_s_per_byte`: mean latency and time per byte of a message between two ranks,
    used to choose numbers of chunks.
    """

    kind: CollectiveKind
    num_ranks: int
    collective_bytes: int
    options: ClassicOptions
    topology: Topology
    npus: tuple[int, ...]
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, slots=True)
class PlannedAlgorithm:
    """A plan with its cost. `details`: choices made by the planner, for the statistics."""

    plan: MessagePlan
    cost: AlphaBetaCost
    details: Mapping[str, int | str]


class RankOrder(Enum):
    """How ranks are assigned to the positions of a plan.

    `RING`: neighbours in the numbering exchange messages and should be close. `GROUPS`: ranks at
    certain distances exchange messages too; groups stay together, or their members alternate.
    `GIVEN`: as numbered, since the plan uses the topology itself, or all ranks exchange messages
    with all.
    """

    GIVEN = "given"
    RING = "ring"
    GROUPS = "groups"


Planner = Callable[[ClassicTask], PlannedAlgorithm]


@dataclass(frozen=True, slots=True)
class ClassicAlgorithm:
    """An algorithm: the planner of every collective that it defines.

    `has_many_ports`: the cost holds for ranks with a link to every partner, otherwise for ranks
    with one port. `order`: assignment of ranks to positions, unless the user gives one.
    """

    planners: Mapping[CollectiveKind, Planner]
    has_many_ports: bool = False
    order: RankOrder = RankOrder.GIVEN


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
