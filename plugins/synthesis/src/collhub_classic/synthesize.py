"""Synthesis by name: plan an algorithm, assign its positions to NPUs, and time it.

The offers of the plugin refer to the functions at the end of this module: for every algorithm one
that synthesizes it, and one (`_ns`) that estimates its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from math import floor
from operator import itemgetter

import numpy as np

from collhub_classic.catalogue import ALGORITHMS
from collhub_classic.message_plan import (
    MAX_ESTIMATE_MESSAGES,
    ClassicAlgorithm,
    ClassicTask,
    MessagePlan,
    PlannedAlgorithm,
    RankOrder,
    compute_mean_link,
    estimate_ns,
    estimate_pairwise_ns,
)
from collhub_classic.orders import find_group_orders, find_ring_order
from collhub_classic.places import BlockPlaces
from collhub_classic.plugin import ClassicOptions
from collhub_classic.steps import build_steps_cached
from collhub_classic.topology_planners import parse_groups
from collhub_classic.uneven import generate_candidates
from hub_core import installed_version
from hub_core.columns import Int64Array
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
from hub_core.schedules import collective_among

_NAME = "collhub-classic"
_MAX_STEPS = 20_000_000
# Links passed by messages between all ranks: more take minutes to simulate, and gigabytes. They
# are counted from so many senders.
_MAX_PASSED_LINKS, _COUNTED_SENDERS = 200_000_000, 16
# Plans grow with the square of the number of ranks.
_MAX_ESTIMATED_RANKS = 128


def synthesize(name: str, request: SynthesisRequest, options: ClassicOptions) -> SynthesisResult:
    """Synthesize the classic algorithm `name` in the fastest of the rank orders that it permits.

    An uneven collective is passed to `_synthesize_uneven`. Otherwise each order of `_find_orders`
    is simulated; a time of None or 0 is replaced by an estimate. The first of equally fast orders
    wins.

    - With one order and `request.needs_time` False, the time is the lower bound in ns (1 if none).
    - Ctrl-C or a limit: the best order so far, or `KeyboardInterrupt` if no order is complete.

    Statistics are rounds, cost, details of the plan, and the order unless it is 0, 1, 2, ... The
    algorithm's extension has them too, with name, topology, occupancy, size and any simulated or
    estimated time. Raises `InputError` (`collective-unsupported`, `too-large`, `size-too-small`,
    `size-not-served`, `disconnected`, or of the plan), and `UsageError` for a single rank or an
    invalid option `order`.
    """
    if request.collective.kind.traits.is_uneven:
        return _synthesize_uneven(name, request, options)
    classic = ALGORITHMS[name]
    task = build_task(name, request, options)
    _check_block_count(compute_least_blocks(name, task))
    _check_passed_links(name, task)
    planned = _get_plan(name, task)
    _check_size(planned.plan, request)
    bound = _compute_bound_ns(request)
    orders = _find_orders(classic, task)
    least_ns = None
    if len(orders) == 1 and not request.needs_time:
        least_ns = max(bound.values(), default=1)
    candidates: list[tuple[int, Algorithm, Int64Array]] = []
    try:
        for order in orders:
            assigned = _assign_ranks(planned.plan, request.collective, order)
            algorithm = _build_algorithm(assigned, request, task.options)
            if least_ns is None:
                # A limit of work ends the simulation with `KeyboardInterrupt`.
                time_ns = request.simulate(algorithm) or estimate_ns(assigned, task)
            else:
                time_ns = least_ns
            candidates.append((time_ns, algorithm, order))
    except KeyboardInterrupt:
        # The best order so far is the result.
        if not candidates:
            raise
    # The first order, that of the rank numbers, wins ties.
    time_ns, algorithm, order = min(candidates, key=itemgetter(0))
    # Collect the statistics: details of the plan, rounds, cost, and the order unless as numbered.
    statistics: dict[str, JsonValue] = {**planned.details, "rounds": planned.plan.num_rounds}
    statistics["cost"] = f"{planned.cost}, {'many ports' if classic.has_many_ports else 'one port'}"
    if not np.array_equal(order, np.arange(task.num_ranks)):
        statistics["order"] = ",".join(map(str, order.tolist()))
    record: dict[str, JsonValue] = {
        "algorithm": name,
        **statistics,
        "topology": request.topology.name,
        "occupancy": str(request.occupancy),
        "collective_bytes": request.collective_bytes,
    }
    if least_ns is None:
        record["time_ns"] = time_ns
    algorithm = replace(algorithm, extensions={_NAME: record})
    return SynthesisResult(algorithm, time_ns, bound, statistics)


def _synthesize_uneven(
    name: str, request: SynthesisRequest, options: ClassicOptions
) -> SynthesisResult:
    """Return the fastest variant of the algorithm `name` for a collective of uneven sizes.

    All variants of `generate_candidates` are simulated. The lowest simulated time wins, of equal
    ones the first. A simulated time of None or 0 is unknown; a variant with a known time always
    wins against one without. If no time is known (as without a simulator), the last variant is
    returned. The time of the result is then the highest lower bound in ns, or 1 without a bound.

    The statistics are the details of the variant. The algorithm's extension `collhub-classic` has
    them with its name and `time_ns`. `request.needs_time` is ignored.

    Raises `UsageError` for a single rank (`one-rank`) and, for algorithms with the option `sizes`,
    for an invalid value (`option-value`). `KeyboardInterrupt` (Ctrl-C, a limit of the search) and
    errors of variants, simulation and bounds pass through; complete variants are then lost.
    """
    if request.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
    option_texts = {key: str(value) for key, value in asdict(options).items()}
    version = installed_version("collhub-synthesis") or ""
    provenance = Provenance(_NAME, version, request.topology.name, "", option_texts)
    groups = parse_groups(options, request.collective.num_ranks)
    best: tuple[int, Mapping[str, JsonValue], Algorithm] | None = None
    for details, algorithm in generate_candidates(name, request, groups, provenance):
        time_ns = request.simulate(algorithm) or 0
        if best is None or 0 < time_ns < best[0] or not best[0]:
            best = time_ns, details, algorithm
    assert best is not None
    bounds = _compute_bound_ns(request)
    # Without a simulator, the bound is the only known time.
    time_ns = best[0] or max(bounds.values(), default=1)
    statistics: dict[str, JsonValue] = {**best[1]}
    record: dict[str, JsonValue] = {"algorithm": name, **statistics, "time_ns": time_ns}
    algorithm = replace(best[2], extensions={**best[2].extensions, _NAME: record})
    return SynthesisResult(algorithm, time_ns, bounds, statistics)


def plan_algorithm(name: str, task: ClassicTask) -> PlannedAlgorithm:
    """Plan the algorithm `name` for the collective of the task; rank r is r, and the root is 0.

    Raises `KeyError` if the algorithm does not have this collective.
    """
    return ALGORITHMS[name].planners[task.kind](task)


def _get_plan(name: str, task: ClassicTask) -> PlannedAlgorithm:
    """Return `plan_algorithm(name, task)`, from a cache that estimates and syntheses share.

    Plans of up to `_MAX_ESTIMATED_RANKS` ranks are cached (the last 32); larger ones are
    planned in every call. Raises the errors of the planner, and `KeyError` if the
    algorithm does not exist or does not have the collective.
    """
    if task.num_ranks > _MAX_ESTIMATED_RANKS:
        return plan_algorithm(name, task)
    return _plan_cached(name, task)


@lru_cache(maxsize=32)
def _plan_cached(name: str, task: ClassicTask) -> PlannedAlgorithm:
    """Return `plan_algorithm(name, task)`; the result is cached and shared."""
    return plan_algorithm(name, task)


def build_synthesizer(name: str) -> Callable[[SynthesisRequest, ClassicOptions], SynthesisResult]:
    """Return a function (request, options) that synthesizes the algorithm `name`.

    It calls `synthesize` and raises its errors. The name is not checked here.
    """

    def synthesize_algorithm(request: SynthesisRequest, options: ClassicOptions) -> SynthesisResult:
        """Call `synthesize` for the algorithm `name`."""
        return synthesize(name, request, options)

    return synthesize_algorithm


def build_estimator(name: str) -> Callable[[SynthesisRequest, ClassicOptions], int | None]:
    """Return a function (request, options) that estimates the time of the algorithm `name` in ns.

    The first rule that applies gives the result of the function:

    1. None for an uneven collective, without further checks.
    2. More than 128 ranks (`_MAX_ESTIMATED_RANKS`), whose plan would take seconds: None without
       further checks, except for `pairwise`. For `pairwise` it is `estimate_pairwise_ns`, a
       formula that needs no plan; the option `order` is ignored.
    3. Otherwise `estimate_ns` of the plan in the first order of `_find_orders`, from a sample
       of about `MAX_ESTIMATE_MESSAGES` messages. It is rounded up and at least 1.

    Errors are raised by the function, not here: `KeyError` for an unknown `name`, those of
    `build_task`, and `InputError` (`disconnected`) for a message without a route. Rule 2 also
    raises `too-large` (`_check_block_count`, `_check_passed_links`); rule 3 also raises the
    errors of the planner and of `_find_orders`.
    """

    def estimate(request: SynthesisRequest, options: ClassicOptions) -> int | None:
        """Estimate the time of the algorithm in ns, without building its steps.

        The algorithm is the `name` of the enclosing function. Returns None for a collective with
        unequal parts. With more than `_MAX_ESTIMATED_RANKS` ranks, returns the result of a formula
        for `pairwise`, which ignores the option `order`, and None for other algorithms.

        Otherwise the messages of the plan, or a sample of them, are timed in the first rank order
        of `_find_orders`. Raises `HubError` for requests and options that the plan does not
        support.
        """
        if request.collective.kind.traits.is_uneven:
            return None
        has_many_ranks = request.collective.num_ranks > _MAX_ESTIMATED_RANKS
        if has_many_ranks and name != "pairwise":
            return None
        task = build_task(name, request, options)
        if has_many_ranks:
            _check_block_count(compute_least_blocks(name, task))
            _check_passed_links(name, task)
            return estimate_pairwise_ns(task.topology, task.npus, task.collective_bytes)
        plan = _get_plan(name, task).plan
        order = _find_orders(ALGORITHMS[name], task)[0]
        return estimate_ns(
            _assign_ranks(plan, request.collective, order), task, MAX_ESTIMATE_MESSAGES
        )

    return estimate


def build_task(name: str, request: SynthesisRequest, options: ClassicOptions) -> ClassicTask:
    """Return the planning task of the algorithm `name` for a request.

    It has the collective's kind, number of ranks and bytes, the options, the topology, the NPU of
    each rank, and `request.chunk_limits`, the allowed numbers of units. `alpha_s` (latency in s)
    and `beta_s_per_byte` (time per byte in s) are means (`compute_mean_link`) over these routes:

    1. From rank 0 to the other ranks that it reaches.
    2. If it reaches none: from the other ranks that reach rank 0.
    3. If there are none either, both means are NaN.

    Of more than 4096 other ranks, 1024 evenly spaced ones are used. Raises, in this order,
    `KeyError` for an unknown `name`, `InputError` (`collective-unsupported`) if the algorithm does
    not define the collective, and `UsageError` (`one-rank`) for one rank. Options are not checked.
    """
    # Raise an error for collectives that the algorithm does not define, and for a single rank.
    classic = ALGORITHMS[name]
    if request.collective.kind not in classic.planners:
        raise InputError(
            f"{name} does not support {request.collective.kind}",
            cure=f"it supports {', '.join(map(str, classic.planners))}",
            code="collective-unsupported",
        )
    if request.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
    alpha_s, beta_s_per_byte = compute_mean_link(request.topology, request.npus)
    return ClassicTask(
        request.collective.kind,
        request.collective.num_ranks,
        request.collective_bytes,
        options,
        request.topology,
        request.npus,
        alpha_s,
        beta_s_per_byte,
        request.chunk_limits,
    )


def _find_orders(classic: ClassicAlgorithm, task: ClassicTask) -> list[Int64Array]:
    """Return the rank orders to try, at least one; entry p of an order is the rank at position p.

    An order is int64[ranks]. The option `order` of the task decides:

    - `given`: only 0, 1, 2 and so on (the numbering).
    - `auto`, for an algorithm with a ring order: only the ring of `find_ring_order`, read-only.
    - `auto`, for an algorithm with group orders: the numbering, then the orders of
      `find_group_orders` (none to two, which differ from the numbering).
    - `auto`, for any other algorithm: only the numbering.
    - A list such as `0,2,1,3`: only this order.

    Raises `UsageError`: `invalid-ranks` for a text that is no list of ranks or has a rank
    twice, and `option-value` if a rank is missing or is not below the number of ranks.
    `InputError` (`disconnected`) of the ring search passes through if a rank cannot reach
    another one.
    """
    option_text, numbered = task.options.order, np.arange(task.num_ranks)
    if option_text == "given":
        return [numbered]
    if option_text != "auto":
        # Parse the option `order`.
        order = parse_ranks(option_text)
        if sorted(order) != list(range(task.num_ranks)):
            raise UsageError(
                f"option order: {option_text[:60]!r} does not name each of "
                f"0..{task.num_ranks - 1} once",
                cure="write for example 0,2,1,3",
                code="option-value",
            )
        return [np.asarray(order, np.int64)]
    if classic.order is RankOrder.RING:
        return [_find_ring_order_cached(task.topology, task.npus)]
    if classic.order is RankOrder.GROUPS:
        return [numbered, *find_group_orders(task.topology, task.npus)]
    return [numbered]


# Several algorithms need it, each for its estimate and its synthesis.
@lru_cache(maxsize=4)
def _find_ring_order_cached(topology: Topology, npus: tuple[int, ...]) -> Int64Array:
    """Return the order of the ranks in a ring with short links, as `find_ring_order`
    computes it.

    The array is read-only. The last four results are cached by network and NPUs. Raises
    `InputError` (`disconnected`) if a rank cannot reach another one.
    """
    order = find_ring_order(topology, npus).copy()
    order.flags.writeable = False
    return order


def _assign_ranks(plan: MessagePlan, collective: Collective, order: Int64Array) -> MessagePlan:
    """Return a plan in which position p of `plan` is rank `order[p]`; `plan` is not changed.

    For a collective with a root, the order is first rotated so that it starts with the root:
    (2, 0, 1) with root 1 becomes (1, 2, 0). Messages keep their sequence, rounds and channels.
    With n ranks, blocks are renamed by the collective:

    - All-to-all: block s * n + d, which rank s sends to rank d, becomes `order[s]` * n +
      `order[d]`.
    - Another collective whose full buffer has one share per rank: with k blocks per share,
      block p * k + i becomes `order[p]` * k + i.
    - Full buffer without shares (all-reduce, reduce, broadcast): blocks keep their numbers.
    """
    ranks = len(order)
    if collective.root is not None:
        # The same cyclic order, starting at the root.
        order = np.roll(order, -int(np.flatnonzero(order == collective.root)[0]))
    kind = collective.kind
    if not kind.traits.is_split:
        return plan.renamed(order, np.arange(plan.num_blocks))
    if kind is CollectiveKind.ALL_TO_ALL:
        source, destination = np.divmod(np.arange(ranks * ranks), ranks)
        return plan.renamed(order, order[source] * ranks + order[destination])
    share, piece = np.divmod(np.arange(plan.num_blocks), plan.num_blocks // ranks)
    return plan.renamed(order, order[share] * (plan.num_blocks // ranks) + piece)


def compute_least_blocks(name: str, task: ClassicTask) -> int:
    """Return a lower bound for the number of blocks in all messages of a plan, before it is built.

    The first rule that applies, for n ranks:

    1. All-reduce: 0 for the algorithms that send entire vectors (`_OF_ENTIRE_VECTORS`), otherwise n
       (n - 2) // 2, because some ranks may be paired with other ranks.
    2. Collectives with a root: 0.
    3. Others, such as all-gather and all-to-all: n (n - 1), because each rank receives or sends the
       shares of all other ranks.
    """
    kind, ranks = task.kind, task.num_ranks
    if kind is CollectiveKind.ALL_REDUCE:
        return 0 if name in _OF_ENTIRE_VECTORS else ranks * (ranks - 2) // 2
    if kind.traits.from_root or kind.traits.to_root:
        return 0
    return ranks * (ranks - 1)


_OF_ENTIRE_VECTORS = ("recursive-doubling", "binomial", "double-binary-tree")


def _check_block_count(blocks: int) -> None:
    """Raise `InputError` (code `too-large`) for more than `_MAX_STEPS` blocks in messages."""
    if blocks > _MAX_STEPS:
        raise InputError(
            f"{blocks} blocks in messages are too many (limit {_MAX_STEPS})",
            cure="choose fewer ranks, or an algorithm of fewer messages",
            code="too-large",
        )


def _check_passed_links(name: str, task: ClassicTask) -> None:
    """Raise `InputError` (`too-large`) if messages between all pairs pass too many links.

    Only the algorithms `direct` and `pairwise` without a root are checked; all others pass. The
    number of links is estimated: the mean distance in links from 16 evenly spaced ranks
    (`_COUNTED_SENDERS`) to all ranks, times the square of the number of ranks. A rank's
    distance to itself counts as 0, as does a rank that cannot be reached. With fewer than 16
    ranks some count repeatedly. Up to 200 million links (`_MAX_PASSED_LINKS`) are allowed. On a
    ring the number grows with the third power of the ranks.
    """
    if name not in ("direct", "pairwise") or task.kind.traits.is_rooted:
        return
    npus = np.asarray(task.npus, np.int64)
    senders = npus[np.linspace(0, len(npus) - 1, _COUNTED_SENDERS).astype(np.int64)]
    hops = task.topology.arcs().hops(senders)[:, npus]
    passed_links = int(np.maximum(hops, 0).mean() * len(npus) ** 2)
    if passed_links > _MAX_PASSED_LINKS:
        raise InputError(
            f"messages between all ranks pass {passed_links} links, which are too many (limit "
            f"{_MAX_PASSED_LINKS})",
            cure="choose fewer ranks, or an algorithm of messages between neighbours",
            code="too-large",
        )


def _check_size(plan: MessagePlan, request: SynthesisRequest) -> None:
    """Raise an error for a plan that is too large, or a size that is too small for its units.

    The units are the blocks of the plan; for an all-to-all, its blocks // ranks. The checks, in
    order:

    - `InputError` (`too-large`): the messages have more than 20 million blocks in all
      (`_MAX_STEPS`).
    - `UsageError` (`size-too-small`): `request.collective_bytes` is below the number of units.
    - `InputError` (`size-not-served`): `request.units` is given and does not allow the number of
      units (`UnitLimits.allows`).
    """
    ranks = request.collective.num_ranks
    _check_block_count(len(plan.blocks))
    is_square = request.collective.kind is CollectiveKind.ALL_TO_ALL
    units = plan.num_blocks // ranks if is_square else plan.num_blocks
    if request.collective_bytes < units:
        raise UsageError(
            f"{request.collective_bytes} bytes cannot be cut in {units} parts",
            cure="choose a larger size, or fewer chunks",
            code="size-too-small",
        )
    if request.units is not None and not request.units.allows(units):
        raise request.units.build_error(units)


def _build_algorithm(
    plan: MessagePlan, request: SynthesisRequest, options: ClassicOptions
) -> Algorithm:
    """Build the algorithm of a plan in which rank r runs on `request.npus[r]`.

    - Units: the plan's blocks; for an all-to-all, its blocks // ranks.
    - Ranks: one per NPU of the topology. If `request.npus` is 0, 1, ..., for all NPUs, the
      collective keeps its kind. Otherwise it becomes a custom collective (`collective_among`), and
      NPUs without a rank have no steps and no SCRATCH.
    - Modes: all collectives support calls out of place. Calls in place are not supported for an
      all-to-all, in which received data would overwrite data to be sent. They are not supported
      either for a custom collective whose original kind has a part per rank (`traits.is_split`).
    - Steps: with the option `rounds=blocking` they are built as synchronous rounds.
    - Size: `request.collective_bytes`.
    - Provenance: the name of the plugin, its version, the name of the topology, the options as
      texts.

    Raises `InputError` (`too-large`) as `collective_among` does.
    """
    ranks = request.collective.num_ranks
    is_square = request.collective.kind is CollectiveKind.ALL_TO_ALL
    collective = replace(
        request.collective,
        unit_count=plan.num_blocks // ranks if is_square else plan.num_blocks,
        # In place, received data would overwrite data that is still to be sent.
        in_place=not is_square,
        out_of_place=True,
    )
    # An all-to-all has blocks for every pair; its units are those of one rank's buffer.
    places = BlockPlaces(collective, plan.num_blocks)
    steps, scratch = build_steps_cached(plan, places, is_synchronous=options.rounds == "blocking")
    total = request.topology.num_npus
    option_texts = {name: str(value) for name, value in asdict(options).items()}
    version = installed_version("collhub-synthesis") or ""
    npu_of = np.asarray(request.npus, np.int64)
    scattered = np.zeros(total, np.int64)
    scattered[npu_of] = scratch
    if not np.array_equal(npu_of, np.arange(total)):
        # Steps of classic plans have no other columns, such as lanes.
        names = ("kind", "channel", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
        columns = {name: getattr(steps, name) for name in names}
        columns["rank"] = npu_of[steps.rank]
        columns["peer"] = np.where(steps.peer >= 0, npu_of[steps.peer], -1)
        steps = StepTable.from_columns(total, columns, steps.data_edges, steps.control_edges)
    return Algorithm(
        collective_among(collective, request.npus, total),
        steps,
        scattered,
        Provenance(_NAME, version, request.topology.name, "", option_texts),
        request.collective_bytes,
    )


def _compute_bound_ns(request: SynthesisRequest) -> dict[str, int]:
    """Return the core's lower bound in ns, rounded down, under the key "ports and distances".

    The result is empty if rank r does not run on NPU r for every NPU of the topology, or if the
    core has no bound. All ranks must be able to reach each other.
    """
    topology, npus = request.topology, request.npus
    if npus != tuple(range(topology.num_npus)):
        return {}
    bound = lower_bound_ns(request.collective, topology, request.collective_bytes, npus)
    if bound is None:
        return {}
    return {"ports and distances": floor(bound)}


# The functions of the offers: the synthesis and the time estimate of every algorithm.
ring = build_synthesizer("ring")
bidirectional_ring = build_synthesizer("bidirectional-ring")
rings = build_synthesizer("rings")
recursive_doubling = build_synthesizer("recursive-doubling")
halving_doubling = build_synthesizer("halving-doubling")
bruck = build_synthesizer("bruck")
binomial = build_synthesizer("binomial")
k_nomial = build_synthesizer("k-nomial")
double_binary_tree = build_synthesizer("double-binary-tree")
direct = build_synthesizer("direct")
pairwise = build_synthesizer("pairwise")
neighbour_exchange = build_synthesizer("neighbour-exchange")
pat = build_synthesizer("pat")
sparbit = build_synthesizer("sparbit")
swing = build_synthesizer("swing")
torus_rings = build_synthesizer("torus-rings")
hierarchical = build_synthesizer("hierarchical")

ring_ns = build_estimator("ring")
bidirectional_ring_ns = build_estimator("bidirectional-ring")
rings_ns = build_estimator("rings")
recursive_doubling_ns = build_estimator("recursive-doubling")
halving_doubling_ns = build_estimator("halving-doubling")
bruck_ns = build_estimator("bruck")
binomial_ns = build_estimator("binomial")
k_nomial_ns = build_estimator("k-nomial")
double_binary_tree_ns = build_estimator("double-binary-tree")
direct_ns = build_estimator("direct")
pairwise_ns = build_estimator("pairwise")
neighbour_exchange_ns = build_estimator("neighbour-exchange")
pat_ns = build_estimator("pat")
sparbit_ns = build_estimator("sparbit")
swing_ns = build_estimator("swing")
torus_rings_ns = build_estimator("torus-rings")
hierarchical_ns = build_estimator("hierarchical")
