"""Plans of messages in rounds, their costs, and estimates of their time on a topology.

A plan defines which ranks send which blocks, before buffers are chosen. All messages of a round are
sent from the state before the round. The reversed plan of an all-gather is one of a reduce-scatter.
Larger algorithms are composed of plans in sequence, in parallel, and with renamed ranks and blocks.
A planner converts a task (collective and options) to a plan.

A cost is that of the alpha-beta model as textbooks give it. An estimate follows Hockney's model
with shared links: a message takes the latency and the time for the bytes of its round on each link
of its route. Large plans are sampled: some rounds, and some messages of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np
import numpy.typing as npt

from collhub_classic.plugin import ClassicOptions
from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Float64Array,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
)
from hub_core.model import CollectiveKind
from hub_core.network import Routes, Topology, find_reached
from hub_core.plugin_api import UnitLimits

MAX_ESTIMATE_MESSAGES = 2_000
"""Messages that are routed for a quick estimate, which takes some milliseconds."""
# Rounds of a pairwise exchange that are routed for an estimate.
_MAX_ESTIMATE_ROUNDS = 16
# Above this number of other ranks, the mean link is that of `_SPACED_RANKS` evenly spaced ones.
_MAX_ROUTED_RANKS = 4096
_SPACED_RANKS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class MessagePlan(ColumnTable):
    """Messages as columns, one row each, sorted by round.

    `round`, `source`, `destination`, `channel`: int64. `reduces` (bool): the blocks are added to
    the destination's data, otherwise they replace it. The blocks of message i are
    `blocks[indptr[i]:indptr[i + 1]]`, numbers of 0..num_blocks - 1.
    """

    num_ranks: int
    num_blocks: int
    round: Int64Array
    source: Int64Array
    destination: Int64Array
    channel: Int64Array
    reduces: BoolArray
    indptr: Int64Array
    blocks: Int64Array

    @property
    def num_rounds(self) -> int:
        """Number of rounds: one more than the highest round of a message; 0 without messages."""
        return int(self.round.max(initial=-1)) + 1

    @property
    def counts(self) -> Int64Array:
        """Number of blocks of every message, int64."""
        return np.diff(self.indptr)

    def backwards(self, *, reduces: bool) -> MessagePlan:
        """Return the plan in reverse, which collects the data that this plan distributes.

        The source and the destination of every message are swapped, and rounds are in reverse
        order. Messages of a round keep their order, and all messages keep their blocks and
        channels. `reduces`: whether all receivers reduce the blocks; the present values are
        replaced. This plan is not changed.
        """
        order = np.argsort(-self.round, kind="stable")
        reversed_plan = self._select_rows(order)
        return replace(
            reversed_plan,
            round=self.num_rounds - 1 - reversed_plan.round,
            source=reversed_plan.destination,
            destination=reversed_plan.source,
            reduces=np.full(len(self), reduces),
        )

    def then(self, next_plan: MessagePlan) -> MessagePlan:
        """Return this plan followed by another plan on the same blocks.

        The rounds of the next plan start after the last round of this one that has a message.
        The number of blocks is that of this plan (not compared), the number of ranks the
        larger one. Neither plan is changed.
        """
        later = replace(next_plan, round=next_plan.round + self.num_rounds)
        return _join_plans([self, later], self.num_blocks)

    def renamed(
        self, ranks: npt.ArrayLike, blocks: npt.ArrayLike, num_blocks: int | None = None
    ) -> MessagePlan:
        """Return the plan with rank r renamed to `ranks[r]` and block b to `blocks[b]`.

        `num_blocks`: the new number of blocks, by default unchanged. The number of ranks grows to
        the largest new rank + 1 if needed, and never shrinks. Several ranks or blocks may get the
        same name. This plan is not changed.
        """
        rank_of = np.asarray(ranks, np.int64)
        block_of = np.asarray(blocks, np.int64)
        return replace(
            self,
            num_ranks=max(self.num_ranks, int(rank_of.max()) + 1),
            num_blocks=self.num_blocks if num_blocks is None else num_blocks,
            source=rank_of[self.source],
            destination=rank_of[self.destination],
            blocks=block_of[self.blocks],
        )

    def expanded(self, first: Int64Array, count: Int64Array, num_blocks: int) -> MessagePlan:
        """Return the plan in which block b is replaced by `count[b]` blocks from `first[b]` on.

        Both arrays are int64[blocks]. The new blocks of a message are in the order of the old
        ones. A count may be 0, so that a message can remain without blocks. `num_blocks` is the
        new number of blocks; it is not checked. The number and order of messages, ranks and
        rounds do not change.
        """
        sizes = count[self.blocks]
        bounds = row_pointer(sizes)
        return replace(
            self,
            num_blocks=num_blocks,
            indptr=bounds[self.indptr],
            blocks=expanded_ranges(first[self.blocks], sizes),
        )

    def _select_rows(self, rows: Int64Array) -> MessagePlan:
        """Return a plan of the messages in `rows`, in the given order, with their blocks.

        Rows are numbers of messages and may repeat. Rounds keep their numbers, and are not sorted.
        The numbers of ranks and blocks remain.
        """
        counts = self.counts[rows]
        return replace(
            self,
            round=self.round[rows],
            source=self.source[rows],
            destination=self.destination[rows],
            channel=self.channel[rows],
            reduces=self.reduces[rows],
            indptr=row_pointer(counts),
            blocks=self.blocks[expanded_ranges(self.indptr[rows], counts)],
        )


def combine_in_parallel(plans: Sequence[MessagePlan]) -> MessagePlan:
    """Combine k plans, each of which carries one part of every block.

    The plans have the same ranks and blocks (not checked). Every block is cut in k parts: block
    b of plan j becomes block b * k + j. The messages of plan j get the channel j instead of
    their previous one. Messages are sorted by round, then by plan, then as in their plan. The
    plans may have different numbers of rounds. Raise `IndexError` without a plan.
    """
    parts = len(plans)
    plan_parts = []
    for part, plan in enumerate(plans):
        blocks = plan.blocks * parts + part
        plan_parts.append(replace(plan, blocks=blocks, channel=np.full(len(plan), part)))
    return _join_plans(plan_parts, plans[0].num_blocks * parts)


class PlanBuilder:
    """Collects the messages of a plan round by round."""

    def __init__(self, num_ranks: int, num_blocks: int) -> None:
        """Create a builder of a plan for these numbers of ranks and blocks, without messages.

        Call `next_round` before the first message is added; otherwise that gets the round -1.
        """
        self._num_ranks = num_ranks
        self._num_blocks = num_blocks
        self._round = -1
        self._columns: dict[str, list[Int64Array]] = {
            name: [] for name in ("round", "source", "destination", "reduces", "counts", "blocks")
        }

    def next_round(self) -> None:
        """Begin the next round; following messages belong to it."""
        self._round += 1

    def send(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        blocks: npt.ArrayLike,
        *,
        reduces: bool = False,
    ) -> None:
        """Add messages to the current round: message i from rank `source[i]` to `destination[i]`.

        `source`, `destination`: arrays of equal length (not checked); a single number gives one
        message. `blocks`: int64[messages, blocks per message], or [messages] for one block each;
        numbers are taken modulo the number of blocks of the plan. `reduces`: whether the receivers
        reduce the blocks. Empty arrays add no message. Ranks are not checked. Raise `ValueError`
        if the messages cannot have equal numbers of blocks.
        """
        rows = np.size(source)
        table = np.asarray(blocks, np.int64).reshape(rows, -1 if rows else 1)
        counts = np.full(len(table), table.shape[1])
        self._add(source, destination, counts, table.ravel(), reduces)

    def send_ranges(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        first: npt.ArrayLike,
        count: npt.ArrayLike,
        *,
        reduces: bool = False,
    ) -> None:
        """Add one message of consecutive blocks to the current round for each entry of `source`.

        Message i is sent from `source[i]` to `destination[i]` and has the `count[i]` blocks from
        `first[i]` on, modulo the number of blocks. With a count of 0 it is a message without
        blocks; above the number of blocks, blocks repeat. A single number as `first` or `count`
        holds for all messages; `destination` must be as long as `source` (not checked). `reduces`:
        whether the receivers reduce the blocks.
        """
        counts = np.broadcast_to(np.asarray(count, np.int64), np.shape(source))
        starts = np.broadcast_to(np.asarray(first, np.int64), np.shape(source))
        self._add(source, destination, counts, expanded_ranges(starts, counts), reduces)

    def build(self) -> MessagePlan:
        """Build the plan of all messages so far, in the order in which they were added.

        Each message has its round, ends, blocks, and whether the receiver adds it. All are on
        channel 0. Without messages the plan is empty. The builder is not changed, so more messages
        may be added afterwards.
        """
        columns = {
            name: np.concatenate([np.zeros(0, np.int64), *parts])
            for name, parts in self._columns.items()
        }
        return MessagePlan(
            self._num_ranks,
            self._num_blocks,
            columns["round"],
            columns["source"],
            columns["destination"],
            np.zeros(len(columns["round"]), np.int64),
            columns["reduces"].astype(np.bool_),
            row_pointer(columns["counts"]),
            columns["blocks"],
        )

    def _add(
        self,
        source: npt.ArrayLike,
        destination: npt.ArrayLike,
        counts: Int64Array,
        blocks: Int64Array,
        reduces: bool,
    ) -> None:
        """Append messages with any numbers of blocks to the current round.

        `source`, `destination`: rank per message. `counts`: number of blocks per message. `blocks`:
        the blocks of all messages, concatenated; they are taken modulo the number of blocks of the
        plan. `reduces`: whether all receivers reduce. Lengths are not checked.
        """
        new_columns = {
            "round": np.full(len(counts), self._round),
            "source": np.asarray(source, np.int64).ravel(),
            "destination": np.asarray(destination, np.int64).ravel(),
            "reduces": np.full(len(counts), reduces, np.int64),
            "counts": counts,
            "blocks": blocks % self._num_blocks,
        }
        for name, column in new_columns.items():
            self._columns[name].append(column)


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
        """Return the time in s of a collective of `collective_bytes` bytes.

        `alpha_s`: latency of a message; `beta_s_per_byte`: time per byte.
        """
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
    used to choose numbers of chunks. `units`: allowed numbers of chunks, None for any.
    """

    kind: CollectiveKind
    num_ranks: int
    collective_bytes: int
    options: ClassicOptions
    topology: Topology
    npus: tuple[int, ...]
    alpha_s: float
    beta_s_per_byte: float
    units: UnitLimits | None = None


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
    """Return the means of (latency in s, time per byte in s) over the routes from rank 0.

    There is one route to each other rank that rank 0 reaches. If it reaches none, as on one-way
    links, the routes from the other ranks that reach rank 0 are used. Of more than
    `_MAX_ROUTED_RANKS` (4096) other ranks, only 1024 that are evenly spaced are considered, since
    routes of rings have many links. The latency of a route is the sum over its links; its time per
    byte is that of its slowest link. `npus`: NPU of each rank, at least one. For a single rank,
    both means are 0. Without any route, both are NaN.
    """
    npu_of = np.asarray(npus, np.int64)
    first = npu_of[:1]
    others = npu_of[1:] if len(npu_of) > 1 else first
    if len(others) > _MAX_ROUTED_RANKS:
        others = others[np.linspace(0, len(others) - 1, _SPACED_RANKS).astype(np.int64)]
    ends = first, others[find_reached(topology, int(first[0]))[others]]
    if not len(ends[1]):
        ends = others[find_reached(topology, int(first[0]), backwards=True)[others]], first
    sources, targets = np.broadcast_arrays(*ends)
    routes = topology.routes(sources, targets)
    slowest = np.zeros(len(targets))
    route = group_of_entry(routes.indptr)
    np.maximum.at(slowest, route, 1 / topology.bandwidth_bytes_per_s[routes.links])
    return float(_sum_latencies_s(topology, routes).mean()), float(slowest.mean())


def _sum_latencies_s(topology: Topology, routes: Routes) -> Float64Array:
    """Return the sum of the latencies of every route's links in s: float64[routes].

    A route without links has the latency 0.
    """
    latencies_s = topology.latency_s[routes.links]
    totals_s = np.bincount(group_of_entry(routes.indptr), latencies_s, len(routes.indptr) - 1)
    return np.asarray(totals_s, np.float64)


def estimate_pairwise_ns(topology: Topology, npus: Sequence[int], collective_bytes: int) -> int:
    """Estimate the time in ns of an all-to-all in which each rank sends to every other rank.

    With n ranks, rank r sends `collective_bytes` / n bytes to rank (r + k) mod n in round k,
    for k = 1 to n - 1. The result is the time of the bytes of all rounds on the busiest link,
    plus the largest latency of a route (the sum over its links). It is rounded up and at least
    1.

    At most 16 rounds (`_MAX_ESTIMATE_ROUNDS`), evenly spaced with the first and the last, are
    routed. Their load is scaled to all n - 1 rounds, and only their latencies count. `npus`:
    NPU of each rank, at least two (`ZeroDivisionError` for one). Raises `InputError`
    (`disconnected`) for a message without a path.
    """
    npu_of = np.asarray(npus, np.int64)
    ranks = len(npu_of)
    rounds = min(ranks - 1, _MAX_ESTIMATE_ROUNDS)
    shifts = np.linspace(1, ranks - 1, rounds).astype(np.int64)
    loads = np.zeros(topology.num_links)
    latency_s = 0.0
    for shift in shifts.tolist():
        routes = topology.routes(npu_of, np.roll(npu_of, -shift))
        loads += np.bincount(routes.links, minlength=topology.num_links)
        latency_s = max(latency_s, float(_sum_latencies_s(topology, routes).max()))
    sent_bytes = collective_bytes / ranks * (ranks - 1) / rounds
    busy_s = float((loads / topology.bandwidth_bytes_per_s).max()) * sent_bytes
    return max(1, ceil((busy_s + latency_s) * 1e9))


def estimate_ns(plan: MessagePlan, task: ClassicTask, max_messages: int | None = None) -> int:
    """Estimate the time of a plan in ns, as the sum of the times of its rounds.

    A round takes as long as its slowest message. A message takes the sum over the links of its
    route: the latency of the link, plus the bytes of all messages of the round on it divided
    by its bandwidth. A block has `collective_bytes` / `num_blocks` bytes; for an all-to-all
    the divisor is `num_blocks` // ranks. The result is rounded up, and at least 1.

    `max_messages`: approximate number of sampled messages, at least 1; None for all. Let s be
    messages // `max_messages`, at least 1, and r the smaller one of s and the number of
    rounds. Every r-th round is used, and in it every (s // r)-th message, with s // r times
    its bytes. The sum is multiplied by rounds / used rounds.

    Raises `InputError` (`disconnected`) for a message without a path, and `ValueError` for a
    plan without messages.
    """
    npu_of = np.asarray(task.npus, np.int64)
    is_square = task.kind is CollectiveKind.ALL_TO_ALL
    unit = task.collective_bytes / (
        plan.num_blocks // task.num_ranks if is_square else plan.num_blocks
    )
    total = 0.0
    boundaries: Int64Array = np.flatnonzero(np.diff(plan.round)) + 1
    cuts = [0, *boundaries.tolist(), len(plan)]
    rounds = list(pairwise(cuts))
    sampling_step = 1 if max_messages is None else max(1, len(plan) // max_messages)
    # Skip rounds first, since most are equal; then messages within large rounds.
    round_step = min(sampling_step, len(rounds))
    message_step = max(1, sampling_step // round_step)
    for start, stop in rounds[::round_step]:
        rows = slice(start, stop, message_step)
        routes = task.topology.routes(npu_of[plan.source[rows]], npu_of[plan.destination[rows]])
        message = group_of_entry(routes.indptr)
        sizes = plan.counts[rows] * (unit * message_step)
        load = np.bincount(routes.links, sizes[message], task.topology.num_links)
        busy = load / task.topology.bandwidth_bytes_per_s + task.topology.latency_s
        total += float(np.bincount(message, busy[routes.links]).max())
    sampled = len(rounds[::round_step])
    return max(1, ceil(total * len(rounds) / max(1, sampled) * 1e9))


def _join_plans(plans: Sequence[MessagePlan], num_blocks: int) -> MessagePlan:
    """Return one plan with the messages of all `plans`, sorted by round; `plans` are not changed.

    Messages of the same round are in the order of the plans, then in their order within the
    plan. Numbers of rounds, channels and blocks are kept, so that messages of different plans
    in the same round are simultaneous. The result has `num_blocks` blocks, which is not
    checked, and the largest number of ranks of the plans. Raises `ValueError` if `plans` is
    empty.
    """
    joined = MessagePlan(
        max(plan.num_ranks for plan in plans),
        num_blocks,
        np.concatenate([plan.round for plan in plans]),
        np.concatenate([plan.source for plan in plans]),
        np.concatenate([plan.destination for plan in plans]),
        np.concatenate([plan.channel for plan in plans]),
        np.concatenate([plan.reduces for plan in plans]),
        row_pointer(np.concatenate([plan.counts for plan in plans])),
        np.concatenate([plan.blocks for plan in plans]),
    )
    return joined._select_rows(np.argsort(joined.round, kind="stable"))
