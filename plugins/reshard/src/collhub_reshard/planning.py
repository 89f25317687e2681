"""From moves and a network to a plan: unit tasks, strategies, schedule, prediction, proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from collhub_shardings import Move, UnitTasks, unit_tasks

from collhub_reshard.fabric.links import can_plan_streams
from collhub_reshard.fabric.streams import StreamPlan, plan_streams
from collhub_reshard.lowering.algorithm import (
    Lowered,
    LoweringChoices,
    lower_schedule,
    lower_streams,
)
from collhub_reshard.proof import (
    Outcome,
    build_schedule_document,
    build_stream_document,
    summarize_schedule,
    summarize_streams,
)
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.bounds import Bound
from collhub_reshard.scheduling.host_tasks import (
    HostNetwork,
    HostTasks,
    build_host_tasks,
    build_ideal_network,
    build_ideal_topology,
    find_host_network,
    find_needing_hosts,
)
from collhub_reshard.scheduling.schedule import HostSchedule, Piece
from collhub_reshard.strategies import (
    LINKS_A_HOP,
    MOST_CHUNKS,
    Reach,
    Strategy,
    choose_cheapest,
    compute_best_chunks,
    compute_card_work,
)
from hub_core.model import Algorithm, InputError
from hub_core.network import Topology

SimulateSeconds = Callable[[Algorithm, Topology], float | None]
"""Seconds of an algorithm on a topology, None where nobody can tell."""

_STREAM_CHUNKS = (1, 4, 16, 64, 256)
# Bytes; the time of shorter messages is latency, and less than simulators count.
_LEAST_MESSAGE = 4096
_MOST_STREAMED_TASKS = 1024


@dataclass(frozen=True, slots=True)
class ReshardChoices:
    """What a user may choose of a resharding.

    `strategy`: one for all tasks, None for the cheapest of each. `chunks`: None for the closed
    form. `layout`: `packed` or `rows`. `effort`: of the schedule.
    """

    strategy: Strategy | None = None
    chunks: int | None = None
    layout: str = "packed"
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """How tensors move: `strategies` and `chunks` by unit task, the schedule, and the network.

    `topology`: the one that was named, else the ideal one. `streams`: on a topology, what runs in
    place of the schedule. `simulated_s`: its time where it was judged by simulation.
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
    def outcome(self) -> Outcome:
        """What is promised, and who proves it."""
        if self.streams is not None:
            return summarize_streams(self.streams)
        return summarize_schedule(self.tasks, self.schedule)

    @property
    def makespan_s(self) -> float:
        """Time of the schedule without latency and store-and-forward."""
        return self.outcome.makespan_s

    @property
    def bound_s(self) -> float:
        """Time that nothing beats on this network, in the same model."""
        return self.outcome.bound_s

    @property
    def predicted_s(self) -> float:
        """Time with latency and chunks that are stored and forwarded at every card."""
        if self.streams is not None:
            return self.streams.predicted_s(max(self.chunks.values(), default=1))
        # The last piece to start need not be the last to arrive.
        return max(map(self._compute_end_s, self.schedule.pieces), default=0.0)

    def lower(self) -> Lowered:
        """The plan as an algorithm, which carries its proof."""
        # The document is made of the schedule, not of the steps:
        # whoever checks it needs no steps for that.
        choices = LoweringChoices(self.strategies, self.chunks, self.choices.layout, self.topology)
        if self.streams is not None:
            document = build_stream_document(self.moves, self.units, self.streams)
            return lower_streams(self.units, self.moves, self.streams, choices, document)
        # Exact times go into it.
        document = build_schedule_document(self.moves, self.units, self.tasks, self.schedule)
        # Steps follow from the schedule alone.
        return lower_schedule(self.units, self.moves, self.tasks, self.schedule, choices, document)

    def _compute_end_s(self, piece: Piece) -> float:
        """When the last chunk of a piece has arrived."""
        row = self.tasks.rows[piece.task]
        links = LINKS_A_HOP * len(self.tasks.receivers[piece.task])
        strategy = self.strategies[row]
        parts = self.chunks[row] * _parts(strategy, self._reach(row))
        if strategy in (Strategy.SEND_RECV, Strategy.LOCAL_ALL_GATHER):
            # They go straight to the last receiver.
            links = LINKS_A_HOP
        fill = piece.duration * (links - 1) / parts
        latency = links / LINKS_A_HOP * self.tasks.network.latency_s
        return self.tasks.seconds(piece.end + fill) + latency

    def _reach(self, row: int) -> Reach:
        return _reach(self.units, row, find_needing_hosts(self.units)[row])


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
    """Plan moves on a topology, or between hosts with cards of a bandwidth (bytes per second).

    `simulate`: by which streams on a topology are cut in chunks, without it in 64.

    Raises `InputError` for moves that do not fit the network.
    """
    choices = choices or ReshardChoices()
    units = unit_tasks(moves)
    network = _network(units, topology, host_bandwidth, latency_s, cards)
    needs = find_needing_hosts(units)
    strategies: dict[int, Strategy] = {}
    chunks: dict[int, int] = {}
    work: dict[int, Fraction] = {}
    for row, hosts in enumerate(needs):
        if not hosts or not units.bytes[row]:
            continue
        reach = _reach(units, row, hosts)
        sender = units.hosts_of(units.senders_of(row))[0]
        t_s = float(int(units.bytes[row]) / network.rate(sender, hosts))
        strategy = choices.strategy or choose_cheapest(reach, t_s, network.latency_s)
        if strategy is Strategy.TREE and topology is None:
            message = "trees are packed on a topology, and none is named"
            raise InputError(message, cure="give --topology, or another strategy")
        strategies[row] = strategy
        chunks[row] = _chunks(strategy, choices.chunks, reach, t_s, network.latency_s)
        work[row] = compute_card_work(strategy, reach)
    tasks = build_host_tasks(units, moves, network, work)
    if topology is not None and _can_stream(topology, units, moves, choices):
        return _plan_streamed(tuple(moves), units, tasks, topology, choices, simulate)
    schedule = find_best_schedule(tasks, units, choices.effort)
    shown = topology or build_ideal_topology(units, network)
    return ReshardPlan(tuple(moves), units, tasks, schedule, strategies, chunks, shown, choices)


def _can_stream(
    topology: Topology, units: UnitTasks, moves: Sequence[Move], choices: ReshardChoices
) -> bool:
    """Whether boxes go in streams: nobody chose a strategy, and all may start at once."""
    is_timed = any(move.release_s or move.due_s is not None for move in moves)
    if choices.strategy is not None or choices.effort.split or is_timed:
        return False
    devices = [*units.senders.tolist(), *units.receivers.tolist()]
    is_small = len(units) <= _MOST_STREAMED_TASKS
    return is_small and can_plan_streams(topology, devices)


def _plan_streamed(
    moves: tuple[Move, ...],
    units: UnitTasks,
    tasks: HostTasks,
    topology: Topology,
    choices: ReshardChoices,
    simulate: SimulateSeconds | None,
) -> ReshardPlan:
    """Streams in the number of chunks that is fastest when simulated."""
    streams = plan_streams(topology, units)
    none = HostSchedule((), "streams", "feasible", "none", Bound("links", Fraction(0)), Fraction(0))
    rows = [row for delivery in streams.deliveries for row in delivery.rows]
    counts = [choices.chunks or MOST_CHUNKS]
    if simulate is not None and choices.chunks is None:
        counts = _list_stream_chunks(streams)
    best: ReshardPlan | None = None
    budget = choices.effort.budget
    for place, count in enumerate(counts if rows else ()):
        if best is not None and budget.reason:
            budget.cut("chunks of streams", f"{len(counts) - place} of {len(counts)} numbers")
            break
        chunks = dict.fromkeys(rows, count)
        plan = ReshardPlan(moves, units, tasks, none, {}, chunks, topology, choices, streams)
        if simulate is not None:
            plan = replace(plan, simulated_s=simulate(plan.lower().algorithm, topology))
        if best is None or _get_time_s(plan) < _get_time_s(best):
            best = plan
    return best or ReshardPlan(moves, units, tasks, none, {}, {}, topology, choices, streams)


def _list_stream_chunks(streams: StreamPlan) -> list[int]:
    """Numbers of chunks to try: more while messages are long enough to be worth sending."""
    parts = [
        (stream.part[1] - stream.part[0]) * streams.deliveries[stream.delivery].bytes
        for stream in streams.streams
    ]
    mean = sum(parts, Fraction(0)) / max(1, len(parts))
    return [count for count in _STREAM_CHUNKS if mean >= count * _LEAST_MESSAGE] or [1]


def _get_time_s(plan: ReshardPlan) -> float:
    """The time by which plans are compared."""
    return plan.predicted_s if plan.simulated_s is None else plan.simulated_s


def _network(
    units: UnitTasks,
    topology: Topology | None,
    host_bandwidth: float | None,
    latency_s: float,
    cards: int,
) -> HostNetwork:
    if topology is not None:
        return find_host_network(topology, units.host_of)
    if host_bandwidth is None:
        raise InputError("no network", cure="give --topology or --host-bandwidth")
    hosts = set(units.host_of.tolist()) - {-1}
    return build_ideal_network(sorted(hosts), host_bandwidth, latency_s, cards)


def _reach(units: UnitTasks, row: int, hosts: Sequence[int]) -> Reach:
    """The receiving hosts of a task, and the most receivers on one of them."""
    on_host = units.host_of[units.receivers_of(row)].tolist()
    return Reach(len(hosts), max((on_host.count(host) for host in hosts), default=1))


def _chunks(
    strategy: Strategy, wanted: int | None, reach: Reach, t_s: float, alpha_s: float
) -> int:
    """As many as the user wants, else by the closed form."""
    # Only a chain passes several cards one after another.
    links = LINKS_A_HOP * (reach.hosts if strategy is Strategy.BROADCAST else 1)
    return wanted or compute_best_chunks(links, t_s, alpha_s)


def _parts(strategy: Strategy, reach: Reach) -> int:
    """Messages that a chunk becomes on the busiest card."""
    parts = {
        Strategy.SEND_RECV: reach.hosts * reach.devices,
        Strategy.LOCAL_ALL_GATHER: reach.hosts * reach.devices,
        Strategy.SCATTER_ALL_GATHER: reach.hosts,
    }
    return parts.get(strategy, 1)
