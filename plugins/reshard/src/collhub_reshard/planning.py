"""Plan a resharding: unit tasks, strategies, schedule or streams, prediction, proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from collhub_shardings import Move, UnitTasks, unit_tasks

from collhub_reshard.algorithm import (
    Lowered,
    LoweringChoices,
    lower_schedule,
    lower_streams,
)
from collhub_reshard.fabric_links import can_plan_streams
from collhub_reshard.fabric_streams import StreamPlan, plan_streams
from collhub_reshard.proof import (
    PlanOutcome,
    build_schedule_document,
    build_stream_document,
    summarize_schedule,
    summarize_streams,
)
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.host_tasks import (
    HostTasks,
    build_host_tasks,
    build_ideal_network,
    build_ideal_topology,
    find_host_network,
    find_needing_hosts,
)
from collhub_reshard.scheduling.schedule import Bound, HostSchedule, Piece
from collhub_reshard.strategies import (
    LINKS_PER_HOP,
    MAX_CHUNKS,
    Reach,
    Strategy,
    choose_cheapest,
    compute_best_chunks,
    compute_card_work,
)
from hub_core.model import Algorithm, InputError
from hub_core.network import Topology

SimulateSeconds = Callable[[Algorithm, Topology], float | None]
"""Simulated seconds of an algorithm on a topology; None if no simulator can run it."""

_STREAM_CHUNKS = (1, 4, 16, 64, 256)
# The time of shorter messages is latency, and below the resolution of simulators.
_MIN_MESSAGE_BYTES = 4096
_MAX_STREAMED_TASKS = 1024


@dataclass(frozen=True, slots=True)
class ReshardChoices:
    """Choices of the user.

    `strategy`: one for all tasks, None for the cheapest of each task. `chunks`: per box, None for
    the closed form. `layout`: `packed` or `rows`. `effort`: of the search for a schedule.
    """

    strategy: Strategy | None = None
    chunks: int | None = None
    layout: str = "packed"
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """Plan by which tensors move.

    `strategies` and `chunks`: by unit task. `topology`: the given one, else the ideal one.
    `streams`: on a topology, streams that replace the schedule. `simulated_s`: time of the streams
    if they were selected by simulation.
    """

    moves: tuple[Move, ...]
    units: UnitTasks
    tasks: HostTasks
    schedule: HostSchedule
    strategies: Mapping[int, Strategy]
    chunks: Mapping[int, int]
    topology: Topology
    choices: ReshardChoices
    streams: StreamPlan | None = None
    simulated_s: float | None = None

    @property
    def outcome(self) -> PlanOutcome:
        """Times of the plan in seconds, its status, and the lower bound with its proof and gap.

        They come from the streams if the plan has any, otherwise from the schedule. These times are
        without latency and without store-and-forward of chunks; `predicted_s` includes both.
        """
        if self.streams is not None:
            return summarize_streams(self.streams)
        return summarize_schedule(self.tasks, self.schedule)

    @property
    def makespan_s(self) -> float:
        """Time in seconds of the schedule or the streams, without latency and store-and-forward."""
        return self.outcome.makespan_s

    @property
    def bound_s(self) -> float:
        """Proven minimum time in seconds on this network, in the same model."""
        return self.outcome.bound_s

    @property
    def predicted_s(self) -> float:
        """Predicted seconds until the last data arrive, with latency and store-and-forward.

        With `streams`, they decide (`StreamPlan.predicted_s`): each stream is computed with the
        largest number of chunks of any unit task (`chunks`; 1 if there is none). Without `streams`,
        it is the latest arrival of a piece of `schedule` (`_compute_end_s`), which uses the number
        of chunks of its own task; 0.0 without pieces.
        """
        if self.streams is not None:
            return self.streams.predicted_s(max(self.chunks.values(), default=1))
        # The piece that starts last is not always the one that arrives last.
        return max(map(self._compute_end_s, self.schedule.pieces), default=0.0)

    def lower(self) -> Lowered:
        """Convert the plan to an algorithm to which its proof document is attached.

        Raises `InputError` for a row layout of too many runs.
        """
        choices = LoweringChoices(self.strategies, self.chunks, self.choices.layout, self.topology)
        if self.streams is not None:
            document = build_stream_document(self.moves, self.units, self.streams)
            return lower_streams(self.units, self.moves, self.streams, choices, document)
        document = build_schedule_document(self.moves, self.units, self.tasks, self.schedule)
        return lower_schedule(self.units, self.moves, self.tasks, self.schedule, choices, document)

    def _compute_end_s(self, piece: Piece) -> float:
        """Predict when the last chunk of a scheduled piece has arrived everywhere, in seconds.

        The piece passes h hops: 1 for send/recv and local all-gather, otherwise the number of
        its receiving hosts. A hop has `LINKS_PER_HOP` (2) links, so there are L = 2 h links. A
        piece is divided into m messages of one size: its chunks times a factor. With R receiving
        hosts and at most D receiving devices on a host, this is R * D for send/recv and local
        all-gather, R for scatter and all-gather, and 1 otherwise. The result is

        end + duration * (L - 1) / m + h * latency

        with the end and the duration of the piece in the schedule, converted from ticks to
        seconds, and the latency of the hosts' network.
        """
        row = self.tasks.rows[piece.task]
        links = LINKS_PER_HOP * len(self.tasks.receivers[piece.task])
        strategy = self.strategies[row]
        reach = _find_reach(self.units, row, find_needing_hosts(self.units)[row])
        messages_per_chunk = {
            Strategy.SEND_RECV: reach.hosts * reach.devices,
            Strategy.LOCAL_ALL_GATHER: reach.hosts * reach.devices,
            Strategy.SCATTER_ALL_GATHER: reach.hosts,
        }
        parts = self.chunks[row] * messages_per_chunk.get(strategy, 1)
        if strategy in (Strategy.SEND_RECV, Strategy.LOCAL_ALL_GATHER):
            # These strategies send directly to the last receiver.
            links = LINKS_PER_HOP
        fill = piece.duration * (links - 1) / parts
        latency = links / LINKS_PER_HOP * self.tasks.network.latency_s
        return self.tasks.seconds(piece.end + fill) + latency


def plan_reshard(
    moves: Sequence[Move],
    *,
    topology: Topology | None = None,
    host_bandwidth: float | None = None,
    latency_s: float = 0.0,
    cards: int = 1,
    choices: ReshardChoices | None = None,
    simulate: SimulateSeconds | None = None,
) -> ReshardPlan:
    """Plan how tensors move between meshes, on a topology or between hosts with equal cards.

    With `topology`, `host_bandwidth`, `latency_s` and `cards` are ignored. Otherwise
    `host_bandwidth` is required: bytes/s of each of the `cards` network cards of a host.
    `choices` None means the defaults. There are two kinds of plans:

    - Streams over the links of the topology, if `choices` has no strategy and no splitting,
      no move has a due time or a release time above 0, there are at most 1024 unit tasks, and
      the topology has one plane and few devices (`can_plan_streams`). All boxes have the same
      number of chunks: that of `choices`, otherwise the one for which `simulate` returns the
      shortest seconds, otherwise 64.
    - Otherwise a schedule of the hosts' cards. Each box (a block of a tensor) that some
      host must receive from another one gets a strategy and a number of chunks: those of
      `choices`, otherwise the cheapest strategy and the best number by formula. Other
      boxes, and empty ones, get neither. Without `topology`, the result has an ideal one.

    Raises `InputError` if both topology and bandwidth are missing, for the strategy tree
    without a topology, for meshes that do not fit each other or the topology, and for too
    many boxes. Raises `ValueError` without moves.
    """
    choices = choices or ReshardChoices()
    units = unit_tasks(moves)
    if topology is not None:
        network = find_host_network(topology, units.host_of)
    elif host_bandwidth is not None:
        hosts_of_meshes = sorted(set(units.host_of.tolist()) - {-1})
        network = build_ideal_network(hosts_of_meshes, host_bandwidth, latency_s, cards)
    else:
        raise InputError("no network", cure="give --topology or --host-bandwidth")
    needs = find_needing_hosts(units)
    strategies: dict[int, Strategy] = {}
    chunks: dict[int, int] = {}
    work: dict[int, Fraction] = {}
    for row, hosts in enumerate(needs):
        if not hosts or not units.bytes[row]:
            continue
        reach = _find_reach(units, row, hosts)
        sender = units.hosts_of(units.senders_of(row))[0]
        t_s = float(int(units.bytes[row]) / network.rate(sender, hosts))
        strategy = choices.strategy or choose_cheapest(reach, t_s, network.latency_s)
        if strategy is Strategy.TREE and topology is None:
            message = "the strategy tree needs a topology"
            raise InputError(message, cure="give --topology, or another strategy")
        strategies[row] = strategy
        # Only a chain passes the cards of several hosts in sequence.
        links = LINKS_PER_HOP * (reach.hosts if strategy is Strategy.BROADCAST else 1)
        chunks[row] = choices.chunks or compute_best_chunks(links, t_s, network.latency_s)
        work[row] = compute_card_work(strategy, reach)
    tasks = build_host_tasks(units, moves, network, work)
    is_timed = any(move.release_s or move.due_s is not None for move in moves)
    can_stream = choices.strategy is None and not choices.effort.split and not is_timed
    can_stream = can_stream and len(units) <= _MAX_STREAMED_TASKS
    devices = [*units.senders.tolist(), *units.receivers.tolist()]
    if topology is not None and can_stream and can_plan_streams(topology, devices):
        return _plan_streamed(tuple(moves), units, tasks, topology, choices, simulate)
    schedule = find_best_schedule(tasks, units, choices.effort)
    shown = topology or build_ideal_topology(units, network)
    return ReshardPlan(tuple(moves), units, tasks, schedule, strategies, chunks, shown, choices)


def _plan_streamed(
    moves: tuple[Move, ...],
    units: UnitTasks,
    tasks: HostTasks,
    topology: Topology,
    choices: ReshardChoices,
    simulate: SimulateSeconds | None,
) -> ReshardPlan:
    """Plan streams on a topology, with the number of chunks that gives the shortest time.

    The numbers that are tried, in this order:

    - the number that the user requested, if any
    - without `simulate`: `MAX_CHUNKS` (64)
    - otherwise those of `_STREAM_CHUNKS` (1, 4, 16, 64, 256) for which the mean message has at
      least 4096 bytes; only 1 if there are none

    The time of a plan is the one that `simulate` returns, or the predicted one if there is no
    `simulate` or it returns None. The plan with the shortest time is returned, of equal ones
    that with the smallest number. All boxes have the same number of chunks; the schedule is
    empty.

    At the time limit, the best plan so far is returned, and the cut is recorded in the budget;
    the first number is always tried. If there are no data to send, the plan has no chunks and
    is not simulated. Raises `InputError` if there is no path between two devices.
    """
    streams = plan_streams(topology, units)
    empty_schedule = HostSchedule(
        (), "streams", "feasible", "none", Bound("links", Fraction(0)), Fraction(0)
    )
    rows = [row for delivery in streams.deliveries for row in delivery.rows]
    counts = [choices.chunks or MAX_CHUNKS]
    if simulate is not None and choices.chunks is None:
        # List the numbers of chunks to try, as long as the mean message has at least 4096 bytes.
        parts = [
            (stream.part[1] - stream.part[0]) * streams.deliveries[stream.delivery].bytes
            for stream in streams.streams
        ]
        mean = sum(parts, Fraction(0)) / max(1, len(parts))
        counts = [count for count in _STREAM_CHUNKS if mean >= count * _MIN_MESSAGE_BYTES] or [1]
    best: ReshardPlan | None = None
    best_s = math.inf
    budget = choices.effort.budget
    for index, count in enumerate(counts if rows else ()):
        if best is not None and budget.reason:
            budget.cut("chunks of streams", f"{len(counts) - index} of {len(counts)} numbers")
            break
        chunks = dict.fromkeys(rows, count)
        plan = ReshardPlan(
            moves, units, tasks, empty_schedule, {}, chunks, topology, choices, streams
        )
        if simulate is not None:
            plan = replace(plan, simulated_s=simulate(plan.lower().algorithm, topology))
        time_s = plan.predicted_s if plan.simulated_s is None else plan.simulated_s
        if best is None or time_s < best_s:
            best, best_s = plan, time_s
    return best or ReshardPlan(
        moves, units, tasks, empty_schedule, {}, {}, topology, choices, streams
    )


def _find_reach(units: UnitTasks, row: int, hosts: Sequence[int]) -> Reach:
    """Return how many hosts need a box, and the largest number of its receivers on one of them.

    `row`: unit task of the box. `hosts`: the hosts that need it; without hosts, the second number
    is 1.
    """
    on_host = units.host_of[units.receivers_of(row)].tolist()
    return Reach(len(hosts), max((on_host.count(host) for host in hosts), default=1))
