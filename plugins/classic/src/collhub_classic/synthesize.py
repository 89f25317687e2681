"""Synthesis by name: plan an algorithm, put it on the NPUs, and time it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from math import floor
from operator import itemgetter

import numpy as np
from collhub_columns import Int64Array
from collhub_schedules import collective_among

from collhub_classic.catalogue import ALGORITHMS
from collhub_classic.estimate import MESSAGES_OF_AN_ESTIMATE, estimated_ns, link_of_message
from collhub_classic.lowering.kept import kept_steps
from collhub_classic.lowering.places import BlockPlaces
from collhub_classic.message_plan import MessagePlan
from collhub_classic.options import ClassicOptions
from collhub_classic.orders import group_orders, ring_order
from collhub_classic.task import ClassicAlgorithm, ClassicTask, PlannedAlgorithm, RankOrder
from hub_core import installed_version
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    JsonValue,
    Provenance,
    StepTable,
    UsageError,
    parse_ranks,
)
from hub_core.network import Topology, lower_bound_ns
from hub_core.plugin_api import SynthesisRequest, SynthesisResult

_NAME = "collhub-classic"
_MOST_STEPS = 20_000_000
# A plan has at least the square of the ranks in blocks.
_MOST_ESTIMATED_RANKS = 128


def synthesize(name: str, request: SynthesisRequest, options: ClassicOptions) -> SynthesisResult:
    """The algorithm `name` for a request.

    Raises `UsageError` for options and sizes that do not fit, and `InputError` for collectives that
    the algorithm does not define.
    """
    classic = ALGORITHMS[name]
    task = task_for(name, request, options)
    planned = _kept_plan(name, task)
    _check_size(planned.plan, request)
    made: list[tuple[int, Algorithm, Int64Array]] = []
    try:
        for order in _orders(classic, task):
            made.append(_ordered(planned.plan, task, request, order))
    except KeyboardInterrupt:
        # The best order so far is an answer.
        if not made:
            raise
    # Of equally fast ones the first, that of the numbers as they are.
    time_ns, algorithm, order = min(made, key=itemgetter(0))
    bound = _bound_ns(request)
    statistics = _statistics(planned, classic, task, order)
    record: dict[str, JsonValue] = {
        "algorithm": name,
        **statistics,
        "topology": request.topology.name,
        "occupancy": str(request.occupancy),
        "collective_bytes": request.collective_bytes,
        "time_ns": time_ns,
    }
    algorithm = replace(algorithm, extensions={_NAME: record})
    return SynthesisResult(algorithm, time_ns, bound, statistics)


def planned_for(name: str, task: ClassicTask) -> PlannedAlgorithm:
    """The plan of a task, its ranks as they are numbered and the root first, and its cost."""
    return ALGORITHMS[name].planners[task.kind](task)


def _kept_plan(name: str, task: ClassicTask) -> PlannedAlgorithm:
    """The plan of a task; small ones are kept, since an estimate and a synthesis need the same."""
    if task.num_ranks > _MOST_ESTIMATED_RANKS:
        return planned_for(name, task)
    return _small_plan(name, task)


@lru_cache(maxsize=32)
def _small_plan(name: str, task: ClassicTask) -> PlannedAlgorithm:
    return planned_for(name, task)


def by_name(name: str) -> Callable[[SynthesisRequest, ClassicOptions], SynthesisResult]:
    """The function behind the offer of an algorithm."""

    def synthesizer(request: SynthesisRequest, options: ClassicOptions) -> SynthesisResult:
        """What `synthesize` returns for the algorithm `name`."""
        return synthesize(name, request, options)

    return synthesizer


def estimate_by_name(name: str) -> Callable[[SynthesisRequest, ClassicOptions], int | None]:
    """The function that estimates the time of an algorithm."""

    def estimate(request: SynthesisRequest, options: ClassicOptions) -> int | None:
        """Estimated nanoseconds of the algorithm `name`; raises as `synthesize` does.

        None for so many ranks that the plan alone would take seconds.
        """
        if request.collective.num_ranks > _MOST_ESTIMATED_RANKS:
            return None
        task = task_for(name, request, options)
        plan = _kept_plan(name, task).plan
        order = _orders(ALGORITHMS[name], task)[0]
        return estimated_ns(_placed(plan, request.collective, order), task, MESSAGES_OF_AN_ESTIMATE)

    return estimate


def _check_request(name: str, classic: ClassicAlgorithm, request: SynthesisRequest) -> None:
    if request.collective.kind not in classic.planners:
        raise InputError(
            f"{name} defines no {request.collective.kind}",
            cure=f"it defines {', '.join(map(str, classic.planners))}",
            code="no-such-collective",
        )
    if request.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )


def task_for(name: str, request: SynthesisRequest, options: ClassicOptions) -> ClassicTask:
    """What the algorithm `name` plans for; raises as `synthesize` does for what does not fit."""
    _check_request(name, ALGORITHMS[name], request)
    alpha_s, beta_s_per_byte = link_of_message(request.topology, request.npus)
    return ClassicTask(
        request.collective.kind,
        request.collective.num_ranks,
        request.collective_bytes,
        options,
        request.topology,
        request.npus,
        alpha_s,
        beta_s_per_byte,
    )


def _ordered(
    plan: MessagePlan, task: ClassicTask, request: SynthesisRequest, order: Int64Array
) -> tuple[int, Algorithm, Int64Array]:
    """The plan with its ranks in this order: nanoseconds, algorithm, and the order."""
    placed = _placed(plan, request.collective, order)
    algorithm = _algorithm(placed, request, task.options)
    return request.simulate(algorithm) or estimated_ns(placed, task), algorithm, order


def _orders(classic: ClassicAlgorithm, task: ClassicTask) -> list[Int64Array]:
    """Orders to try: of each the rank at every place of the plan."""
    stated, given = task.options.order, np.arange(task.num_ranks)
    if stated == "given":
        return [given]
    if stated != "auto":
        return [_stated_order(stated, task)]
    if classic.order is RankOrder.RING:
        return [_kept_ring_order(task.topology, task.npus)]
    if classic.order is RankOrder.GROUPS:
        return [given, *group_orders(task.topology, task.npus)]
    return [given]


# Several algorithms ask for it, each for its estimate and its synthesis.
@lru_cache(maxsize=4)
def _kept_ring_order(topology: Topology, npus: tuple[int, ...]) -> Int64Array:
    order = ring_order(topology, npus).copy()
    order.flags.writeable = False
    return order


def _stated_order(stated: str, task: ClassicTask) -> Int64Array:
    """The order that the user states. Raises `UsageError` for one that is none."""
    order = parse_ranks(stated)
    if sorted(order) != list(range(task.num_ranks)):
        raise UsageError(
            f"option order: {stated[:60]!r} does not name each of 0..{task.num_ranks - 1} once",
            cure="write for example 0,2,1,3",
            code="option-value",
        )
    return np.asarray(order, np.int64)


def _placed(plan: MessagePlan, collective: Collective, order: Int64Array) -> MessagePlan:
    """The plan with its places taken by ranks in this order, the first place by the root."""
    ranks = len(order)
    if collective.root is not None:
        # The same ring, from the root on.
        order = np.roll(order, -int(np.flatnonzero(order == collective.root)[0]))
    kind = collective.kind
    if not kind.traits.is_split:
        return plan.renamed(order, np.arange(plan.num_blocks))
    if kind is CollectiveKind.ALL_TO_ALL:
        source, destination = np.divmod(np.arange(ranks * ranks), ranks)
        return plan.renamed(order, order[source] * ranks + order[destination])
    share, piece = np.divmod(np.arange(plan.num_blocks), plan.num_blocks // ranks)
    return plan.renamed(order, order[share] * (plan.num_blocks // ranks) + piece)


def _check_size(plan: MessagePlan, request: SynthesisRequest) -> None:
    ranks = request.collective.num_ranks
    if len(plan.blocks) > _MOST_STEPS:
        raise InputError(
            f"{len(plan.blocks)} blocks in messages are too many (limit {_MOST_STEPS})",
            cure="choose fewer ranks, or an algorithm of fewer messages",
            code="too-large",
        )
    is_square = request.collective.kind is CollectiveKind.ALL_TO_ALL
    units = plan.num_blocks // ranks if is_square else plan.num_blocks
    if request.collective_bytes < units:
        raise UsageError(
            f"{request.collective_bytes} bytes cannot be cut in {units} parts",
            cure="choose a larger size, or fewer chunks",
            code="size-too-small",
        )


def _algorithm(plan: MessagePlan, request: SynthesisRequest, options: ClassicOptions) -> Algorithm:
    ranks = request.collective.num_ranks
    is_square = request.collective.kind is CollectiveKind.ALL_TO_ALL
    collective = replace(
        request.collective,
        unit_count=plan.num_blocks // ranks if is_square else plan.num_blocks,
        # In place, what arrives would stand where something still waits to be sent.
        in_place=not is_square,
        out_of_place=True,
    )
    # An all-to-all has blocks for every pair, its units are those of one rank's buffer.
    places = BlockPlaces(collective, plan.num_blocks)
    steps, scratch = kept_steps(plan, places, is_synchronous=options.rounds == "blocking")
    total = request.topology.num_npus
    given = {name: str(value) for name, value in asdict(options).items()}
    version = installed_version(_NAME) or ""
    return Algorithm(
        collective_among(collective, request.npus, total),
        _on_npus(steps, request.npus, total),
        _scattered(scratch, request.npus, total),
        Provenance(_NAME, version, request.topology.name, "", given),
        request.collective_bytes,
    )


def _on_npus(steps: StepTable, npus: Sequence[int], total: int) -> StepTable:
    """The steps with the NPU of each rank in its place."""
    place = np.asarray(npus, np.int64)
    if np.array_equal(place, np.arange(total)):
        return steps
    names = ("kind", "channel", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    columns = {name: getattr(steps, name) for name in names}
    columns["rank"] = place[steps.rank]
    columns["peer"] = np.where(steps.peer >= 0, place[steps.peer], -1)
    child = np.repeat(np.arange(len(steps)), np.diff(steps.data_indptr))
    follower = np.repeat(np.arange(len(steps)), np.diff(steps.control_indptr))
    return StepTable.from_columns(
        total, columns, (steps.data_indices, child), (steps.control_indices, follower)
    )


def _scattered(values: Int64Array, npus: Sequence[int], total: int) -> Int64Array:
    """Values of ranks as values of all NPUs, 0 for those that do nothing."""
    # NPUs that do not take part need no scratch.
    found = np.zeros(total, np.int64)
    found[np.asarray(npus, np.int64)] = values
    return found


def _bound_ns(request: SynthesisRequest) -> dict[str, int]:
    """What no algorithm can beat, where all NPUs take part as numbered."""
    if request.npus != tuple(range(request.topology.num_npus)):
        return {}
    bound = lower_bound_ns(request.collective, request.topology, request.collective_bytes)
    return {} if bound is None else {"ports and distances": floor(bound)}


def _statistics(
    planned: PlannedAlgorithm, classic: ClassicAlgorithm, task: ClassicTask, order: Int64Array
) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {**planned.details, "rounds": planned.plan.num_rounds}
    found["cost"] = f"{planned.cost}, {'many ports' if classic.has_many_ports else 'one port'}"
    if not np.array_equal(order, np.arange(task.num_ranks)):
        found["order"] = ",".join(map(str, order.tolist()))
    return found
