"""Spreading of chunks to all NPUs that need them: the choice of the kernels for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from collhub_tacos.link_network import FREE, LinkNetwork, LinkTimes, PathNetwork
from collhub_tacos.schedules.link_schedule import ArrivalLog, LinkSchedule
from collhub_tacos.search.candidates import Trials
from collhub_tacos.search.seeds import Progress, drop_activity, find_best_of_seeds, report_activity
from collhub_tacos.search.setting import Setting
from collhub_tacos.spreading.staged import (
    build_free_all_gathers,
    find_group_grids,
    generate_staged_all_gathers,
    generate_staged_broadcasts,
)
from collhub_tacos.symmetry import Translations
from collhub_tacos.time_cuts import find_tightest_cut, supports_time_cuts
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import CollectiveKind, InputError
from hub_core.schedules import fastest_of

_MAX_SEEDS = 20
# Limits on the number of (link, chunk) pairs, which determines the cost of a kernel, and on
# transfers.
_PAIRS_FOR_SEEDS = 400_000
_PAIRS_FOR_TREE_SEEDS, _MAX_TREE_SEEDS = 40_000, 4
_MAX_PAIRS_FOR_TREES = 20_000
_MAX_PAIRS_FOR_SYMMETRY = 20_000_000
_MAX_RETIMED_TRANSFERS = 2_000_000
# Maximum number of step counts of an exact search, each with some seconds of work.
_MAX_EXACT_TRIES = 3
# Maximum number of (node, chunk) pairs for which a seed of a matching takes less than a second.
_MAX_CELLS_FOR_MATCHING = 100_000
_CELLS_FOR_MATCHING_SEEDS, _MAX_MATCHING_SEEDS = 120_000, 20
_GIB = 2**30


@dataclass(frozen=True, slots=True, eq=False)
class SpreadTask:
    """Task to bring chunk x from NPU `origin[x]` to all members of the setting over `network`.

    `network`: that of the setting, or its transpose. `times`: of a message of one chunk on it.
    `trials`: of plans on switches with this number of chunks.
    """

    setting: Setting
    network: LinkNetwork
    times: LinkTimes
    origin: Int64Array
    trials: Trials

    @property
    def num_pairs(self) -> int:
        """Number of pairs of a link and a chunk."""
        return self.network.num_links * len(self.origin)

    @property
    def num_cells(self) -> int:
        """Number of pairs of a node and a chunk."""
        return self.network.num_nodes * len(self.origin)

    @property
    def is_all_gather(self) -> bool:
        """Whether the spreading is an all-gather of all NPUs.

        It is if all NPUs are members, rank r is NPU r, and each NPU is the origin of at least one
        chunk. The numbers of chunks per NPU may differ.
        """
        # Kernels for all NPUs need a chunk of each.
        has_each = len(np.unique(self.origin)) == self.network.num_npus
        return has_each and not self.setting.has_relays

    def members(self) -> BoolArray:
        """Return which nodes of the network take part in the collective: bool[nodes]."""
        is_member = np.zeros(self.network.num_nodes, np.bool_)
        is_member[self.setting.members] = True
        return is_member

    def seeds(self, pairs: int, max_seeds: int) -> int:
        """Return the requested number of seeds, else one that fits `pairs` pairs of link and chunk.

        The latter is between 1 and `max_seeds`.
        """
        return self.setting.seeds or max(1, min(max_seeds, pairs // max(1, self.num_pairs)))

    def choose_matching_seeds(self) -> int:
        """Return how many seeds a matching tries: the requested number, if it is not 0.

        Otherwise it is 120 000 (`_CELLS_FOR_MATCHING_SEEDS`) divided by the pairs of a node and a
        chunk, rounded down and limited to 1..20 (`_MAX_MATCHING_SEEDS`).
        """
        affordable = _CELLS_FOR_MATCHING_SEEDS // max(1, self.num_cells)
        return self.setting.seeds or max(1, min(_MAX_MATCHING_SEEDS, affordable))

    def count_trial(self) -> None:
        """Charge a seed to the request's budget: a step per node and chunk.

        Raises the exception of an exhausted budget.
        """
        self.setting.budget.spend(self.num_cells)

    def result(
        self,
        schedule_or_log: LinkSchedule | ArrivalLog,
        kernel: str,
        seed: int,
        is_interrupted: bool,
    ) -> SpreadResult:
        """Return the schedule or log with the times, origins and members of this request.

        `kernel`, `seed`: name of the kernel that built it, and its seed. All participating NPUs
        need all chunks, and no exact search is recorded.
        """
        members = self.setting.members
        return SpreadResult(
            schedule_or_log, self.times, self.origin, members, kernel, seed, is_interrupted
        )


@dataclass(frozen=True, slots=True, eq=False)
class SpreadResult:
    """Spreading of chunk x from NPU `origin[x]` to every node that needs it: a schedule or a log.

    `kernel`, `seed`: their source. `needed`: NPUs that need all chunks, None for routes.
    `exact_search`: reason why an exact search found no schedule at the bound, empty if it found one
    or does not apply.
    """

    schedule_or_log: LinkSchedule | ArrivalLog
    times: LinkTimes
    origin: Int64Array
    needed: Int64Array | None
    kernel: str
    seed: int
    is_interrupted: bool = False
    exact_search: str = ""

    @property
    def time_ps(self) -> int:
        """Arrival time of the last chunk in picoseconds."""
        return self.schedule_or_log.time_ps

    @property
    def num_transfers(self) -> int:
        """Return the number of transfers: one per chunk and link over which it is sent."""
        if isinstance(self.schedule_or_log, ArrivalLog):
            return self.schedule_or_log.num_transfers
        return len(self.schedule_or_log)

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """Return all transfers, or only those from or to `nodes`, as a schedule with times.

        A log is expanded, which takes memory in proportion to the selected transfers.
        """
        if isinstance(self.schedule_or_log, ArrivalLog):
            return self.schedule_or_log.schedule(nodes)
        return (
            self.schedule_or_log if nodes is None else self.schedule_or_log.select_touching(nodes)
        )

    def replay(self, progress: Progress) -> bool:
        """Verify the schedule without expanding a log; return whether that was possible.

        A log is always verified (`replay_log`): every node must get all chunks. A schedule is
        verified by `replay`: every NPU of `needed` must get all chunks. Both also check the
        times and the order of transfers. The result is False, without any check, for a schedule
        with `needed` None (routes) or on a network with switches (`PathNetwork`). Raises
        `InputError` (`invalid-schedule`) for the first violation. `progress` is called only for
        a log.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.schedules.replay import replay, replay_log

        if isinstance(self.schedule_or_log, ArrivalLog):
            replay_log(
                self.schedule_or_log,
                self.times,
                self.origin,
                report_activity(progress, "replaying"),
            )
            return True
        if self.needed is None or isinstance(self.schedule_or_log.network, PathNetwork):
            return False
        chunk = np.arange(len(self.origin))
        # Every chunk to every participating NPU.
        needed_chunk = np.repeat(chunk, len(self.needed))
        needed_node = np.tile(self.needed, len(chunk))
        replay(self.schedule_or_log, self.times, self.origin, (needed_chunk, needed_node))
        return True


def spread_out(
    task: SpreadTask,
    progress: Progress,
    time_ps: Callable[[SpreadResult], int] = lambda result: result.time_ps,
) -> SpreadResult:
    """Bring all chunks to all members by suitable kernels; return the fastest result.

    A kernel is a method of spreading; `_choose_kernels` has the rules and the order. Results
    are compared by `time_ps`; of equal ones the first is returned. Ctrl-C ends the search with
    the best result so far, marked as interrupted; without one it is raised again. Raise
    `InputError` if a member cannot be reached (`disconnected`), and if the log of an all-gather
    in equal steps would exceed the memory limit (`memory`).
    """
    best = fastest_of(_run_kernels(task, progress), time_ps)
    # There is a kernel for every network.
    assert best is not None
    return best


def _run_kernels(task: SpreadTask, progress: Progress) -> Iterator[SpreadResult]:
    """Yield the results of the kernels of `_choose_kernels`, until one attains the lower bound.

    A kernel is run only when its result is requested. Only all-gathers of all NPUs without
    switches have a bound (`_compute_goal_ps`); the result that attains it is yielded too. For
    all other tasks every kernel is run.
    """
    has_goal = task.is_all_gather and not isinstance(task.network, PathNetwork)
    for kernel in _choose_kernels(task):
        result = kernel(task, progress)
        yield result
        if has_goal and result.time_ps <= _compute_goal_ps(task):
            return


def spread_freely(task: SpreadTask) -> list[SpreadResult]:
    """Return all-gather schedules in which messages wait only for their data; links have no order.

    Times are planned without contention. The plans of `build_all_gather_plans` give one schedule
    each, by ascending maximum load of a link, ties in the order of the plans. Only the first 3
    plans are used, but all if switches of the topology multicast or reduce.

    The result is empty without plans, and if any of these holds:

    - The network has no switches.
    - Some NPUs only relay, or rank r is not on NPU r for all r.
    - Only some ranks are requested.
    - Chunks times (NPUs - 1) exceed 200,000, too many for repeated simulation.
    - No switch multicasts or reduces, and some NPU starts without a chunk.
    - No switch multicasts or reduces, and all arcs have equal times.
    """
    is_small = task.setting.is_compared(len(task.origin)) and task.setting.requested_ranks is None
    has_stages = isinstance(task.network, PathNetwork) and not task.setting.has_relays
    is_multiplied = bool(task.network.topology.multicast or task.network.topology.reduction)
    is_useful = is_multiplied or (task.is_all_gather and not task.times.is_equal)
    if not (is_small and has_stages and is_useful):
        return []
    free = replace(task, times=replace(task.times, rule=FREE))
    return [
        free.result(schedule, "free stages", task.setting.seed, False)
        for schedule in build_free_all_gathers(task.network, free.times, task.origin)
    ]


_SpreadKernel = Callable[[SpreadTask, Progress], SpreadResult]


def _choose_kernels(task: SpreadTask) -> Iterator[_SpreadKernel]:
    """Yield the suitable methods of spreading chunks (kernels) in the order of the trials.

    A pair is a link and a chunk. A network with switches (`PathNetwork`) has these kernels:

    1. stages: one kernel per possible and promising plan along groups of NPUs. None if
       `task.setting.has_relays` (some NPUs only relay).
    2. trees of routes: always, with one exception. It is left out if there is a kernel of stages,
       the network is regular (all arcs have equal times, or its groups form grids), and there are
       more than 20 000 pairs.

    A network without switches has these kernels:

    1. equal steps: if all NPUs gather and all links have equal times. It is the only kernel if
       each link is also busy until the arrival (`times.is_uniform`).
    2. the translated part of one node: if all NPUs gather, the network is symmetric, and there are
       at most 20 million pairs
    3. deliveries in the order of time: unless there is kernel 1 and more than 400 000 pairs
    """
    if isinstance(task.network, PathNetwork):
        # Yield stages if they are possible, and trees for small or irregular networks.
        is_staged = False
        # Stages need groups of equal size, which a single failed link may prevent.
        for schedule in () if task.setting.has_relays else _generate_staged(task):
            is_staged = True
            yield partial(_wrap_staged, schedule)
        # On regular networks trees were not observed to be faster than stages.
        is_regular = task.times.is_equal or bool(find_group_grids(task.network, task.times))
        if not (is_staged and is_regular and task.num_pairs > _MAX_PAIRS_FOR_TREES):
            yield _spread_on_trees
        return
    is_everywhere = task.is_all_gather
    fits_lockstep = is_everywhere and task.times.is_equal
    if fits_lockstep:
        # First, because its log is small.
        yield _spread_in_steps
        # Steps are then exact, and no other kernel was observed to be faster.
        if task.times.is_uniform:
            return
    if is_everywhere and task.num_pairs <= _MAX_PAIRS_FOR_SYMMETRY:
        translations = Translations.of(task.network, task.origin, task.times)
        if translations is not None:
            yield partial(_spread_symmetrically, translations)
    if not fits_lockstep or task.num_pairs <= _PAIRS_FOR_SEEDS:
        yield _spread_by_events


def _generate_staged(task: SpreadTask) -> Iterator[LinkSchedule]:
    """Yield schedules that follow fixed plans of stages, one complete schedule per plan.

    A plan is, for example, to send first to one member of every group, then within the groups. For
    an all-gather, every chunk goes from its origin to all NPUs. For other tasks, the schedules are
    broadcasts of all chunks from the origin of the first chunk, and the origins of the other chunks
    are ignored. Plans that the network does not support, or that `task.trials` does not consider
    promising, are omitted, so there may be no schedule.
    """
    if task.is_all_gather:
        return generate_staged_all_gathers(task.network, task.times, task.origin, task.trials)
    root, chunks = int(task.origin[0]), len(task.origin)
    return generate_staged_broadcasts(task.network, task.times, root, chunks, task.trials)


def _wrap_staged(schedule: LinkSchedule, task: SpreadTask, progress: Progress) -> SpreadResult:
    """Return a finished schedule in stages as a result of the kernel "stages".

    Its seed is that of the setting, which has no effect on it. Progress 0 is reported.
    """
    progress(0.0, "spreading in stages")
    return task.result(schedule, "stages", task.setting.seed, False)


def _spread_symmetrically(
    translations: Translations, task: SpreadTask, progress: Progress
) -> SpreadResult:
    """Compute the part of one node and translate it to all nodes; return the best of the seeds.

    The schedule with the shortest time is returned, of equal ones that of the lower seed. The
    requested number of seeds (0: `_MAX_SEEDS`, i.e. 20) is tried in ascending order from the seed
    of the setting on. `progress` is called, and each trial is counted in `task`. The kernel is
    called "symmetric".

    The search ends early at a schedule that attains the lower bound by the links into a node.
    Ctrl-C or a limit ends it with the best result so far, marked as interrupted. Without a result,
    it is raised again. Raises `InputError` if a link is busy for less than 1 ps (`link-times`), and
    if a chunk cannot reach a node (`disconnected`).
    """
    # Imported here and below: numba takes a second.
    from collhub_tacos.spreading.heterogeneous import bound_ingress_ps
    from collhub_tacos.spreading.symmetric import find_all_gather

    result = find_all_gather(
        task.network,
        translations,
        task.times,
        task.origin,
        task.setting.seeds or _MAX_SEEDS,
        task.setting.seed,
        bound_ingress_ps(task.network, task.times, task.origin),
        progress,
        task.count_trial,
    )
    return task.result(result.result, "symmetric", result.seed, result.is_interrupted)


def _spread_by_events(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Spread chunks by a simulation of events, on links of any times; return the fastest schedule.

    1. The first search tries the requested number of seeds. By default it is `_PAIRS_FOR_SEEDS`
       divided by the pairs of link and chunk, limited to 1..20. It stops at a schedule as fast as
       the bound by the links into a node. The fastest schedule counts; ties go to the first seed.
    2. The second search has deadlines. It runs if the first was not interrupted, all NPUs are
       members with a chunk each, and its estimated cost is at most 2^25. It stops at the lower
       bound `_compute_goal_ps`. The kernel is "deadlines" if it finds a faster schedule, which
       is then returned. Otherwise the kernel is "events".

    Ctrl-C or a limit stops a search; the best result is returned, marked as interrupted. If the
    first search has none, the exception is raised. Raises `InputError` for a chunk that cannot
    reach a member. The budget of the request is charged per trial.
    """
    from collhub_tacos.spreading.heterogeneous import find_all_gather
    from collhub_tacos.spreading.matching import (
        MAX_DEADLINE_COST,
        estimate_deadline_cost,
        search_with_deadlines,
    )

    result = find_all_gather(
        task.network,
        task.times,
        task.origin,
        task.seeds(_PAIRS_FOR_SEEDS, _MAX_SEEDS),
        task.setting.seed,
        task.setting.threads,
        progress,
        task.members(),
        task.count_trial,
    )
    is_small = estimate_deadline_cost(task.network, len(task.origin)) <= MAX_DEADLINE_COST
    if result.is_interrupted or not (is_small and task.is_all_gather):
        return task.result(result.result, "events", result.seed, result.is_interrupted)
    improved = search_with_deadlines(
        task.network,
        task.times,
        task.origin,
        result,
        goal_ps=_compute_goal_ps(task),
        first_seed=task.setting.seed,
        report=report_activity(progress, "meeting deadlines"),
        after_trial=task.count_trial,
    )
    kernel = "events" if improved.result is result.result else "deadlines"
    return task.result(improved.result, kernel, improved.seed, improved.is_interrupted)


def _spread_in_steps(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Spread chunks in equal steps; if the result may be improved, try two further searches.

    The times of all links must be equal. The searches, in this order:

    1. In equal steps. Its result is returned in three cases: it attains the lower bound; it is
       interrupted; one node was computed for all (kernel "symmetric") and the link times are not
       uniform (`is_uniform`), i.e. a link is free before the chunk arrives.
    2. By matchings, only up to 100 000 pairs of node and chunk. A strictly faster result (kernel
       "matching") replaces the current one, and is returned if its search was interrupted.
    3. An exact search, also above this limit. It returns a faster result, or else the current one.

    Raises `InputError` for a log above the memory limit (`memory`), then for networks with
    switches, invalid link times, and chunks that cannot reach a node.
    """
    from collhub_tacos.spreading.matching import find_best_matched_all_gather

    # Usually at the bound, and the least expensive kernel.
    result = _spread_in_lockstep(task, progress)
    goal_ps = _compute_goal_ps(task)
    # If all nodes act equally, contention is minimal, and no simulator prefers another order.
    is_regular = result.kernel == "symmetric" and not task.times.is_uniform
    if result.time_ps <= goal_ps or is_regular or result.is_interrupted:
        return result
    if task.num_cells > _MAX_CELLS_FOR_MATCHING:
        return _search_exactly(task, goal_ps, progress, result)
    matched = find_best_matched_all_gather(
        task.network,
        task.times,
        task.origin,
        seeds=task.choose_matching_seeds(),
        first_seed=task.setting.seed,
        goal_ps=goal_ps,
        threads=task.setting.threads,
        progress=progress,
        after_trial=task.count_trial,
    )
    if matched.result.time_ps < result.time_ps:
        result = task.result(matched.result, "matching", matched.seed, matched.is_interrupted)
    if result.is_interrupted:
        return result
    return _search_exactly(task, goal_ps, progress, result)


def _search_exactly(
    task: SpreadTask, goal_ps: int, progress: Progress, result: SpreadResult
) -> SpreadResult:
    """Search exactly for a faster schedule in a small case; return it, else `result`.

    `result` is returned unchanged in these cases: links have different times or are free before
    the arrival; the network has switches; `result` needs no more steps than the bound
    `goal_ps`, rounded up to steps.

    Otherwise these numbers of steps are tried, ascending: from the bound on, at most
    `_MAX_EXACT_TRIES` (3) numbers, all smaller than that of `result`. The first schedule is
    returned, with kernel "exact" and seed 0. Each trial may take the remaining time of the
    budget.

    If there is none with the steps of the bound, `exact_search` of the returned result is the
    reason, for example too many variables. Otherwise it is "". Ctrl-C ends the search; `result`
    is then marked as interrupted.
    """
    from collhub_tacos.spreading.exact import find_exact_all_gather

    step_ps = int(task.times.busy[0])
    steps = -(-goal_ps // step_ps)
    has_switches = task.network.num_nodes > task.network.num_npus
    if not task.times.is_uniform or has_switches or result.time_ps <= steps * step_ps:
        return result
    progress(0.0, "exact search")
    reason = ""
    try:
        for number in range(steps, min(result.time_ps // step_ps, steps + _MAX_EXACT_TRIES)):
            left_s = task.setting.budget.left_s
            schedule = find_exact_all_gather(task.network, task.origin, number, step_ps, left_s)
            if not isinstance(schedule, str):
                result = task.result(schedule, "exact", 0, False)
                break
            reason = reason or f"{schedule} ({number} steps)"
    except KeyboardInterrupt:
        result = replace(result, is_interrupted=True)
    return replace(result, exact_search=reason)


@lru_cache(maxsize=1)
def _compute_goal_ps(task: SpreadTask) -> int:
    """Return a lower bound in ps for the task as an all-gather of all NPUs.

    - If `supports_time_cuts` accepts the network (it has links, is not too large, and messages
      take at least 1 ps): the time of `find_tightest_cut`, the largest bound of all examined cuts
      of the nodes into two sets.
    - Otherwise the maximum over the NPUs of the time in which the links into the NPU can deliver
      the chunks that it lacks; 0 if no NPU has such links.

    The members of the task are ignored. The result of the last task (the same object) is cached.
    """
    from collhub_tacos.spreading.heterogeneous import bound_ingress_ps

    network = task.network
    if not supports_time_cuts(network, task.times):
        return bound_ingress_ps(network, task.times, task.origin)
    gathering = replace(
        task.setting.collective,
        kind=CollectiveKind.ALL_GATHER,
        unit_count=len(task.origin),
    )
    members = np.arange(network.num_npus)
    cut = find_tightest_cut(gathering, network, task.times, members)
    return cut.time_ps


def _spread_in_lockstep(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Spread the chunks in steps of equal duration; return the fastest schedule of the seeds.

    All links must have equal times. Of equally fast schedules, that of the earlier seed is
    returned. With 0 seeds, the search chooses their number. The kernel of the result is
    "symmetric" if one node was computed and translated to all other nodes, otherwise
    "lockstep".

    The result has a log of the steps. It has a schedule instead if links are free before a
    chunk arrives and there are at most 2 million transfers. Then transfers start as early as
    possible.

    On Ctrl-C the best result so far is returned, marked as interrupted. Without a result,
    `KeyboardInterrupt` is raised again. Raises `InputError` first for a log above the memory
    limit (`memory`), then for networks with switches, invalid link times, and chunks that
    cannot reach a node.
    """
    from collhub_tacos.spreading.homogeneous import estimate_memory_bytes, find_best_all_gather

    # The logs of all nodes are the largest arrays of a synthesis. Logs of several seeds that are
    # built at the same time are not added up.
    needed, memory = estimate_memory_bytes(task.network, len(task.origin)), task.setting.memory
    if needed > memory:
        takes = f"the schedule takes {needed / _GIB:.1f} GiB"
        raise InputError(
            f"{takes}, the option memory allows {memory / _GIB:.1f} GiB",
            cure="give -O memory=..., or fewer chunks",
            code="memory",
        )
    lockstep = find_best_all_gather(
        task.network,
        int(task.times.busy[0]),
        task.origin,
        arrival_ps=int(task.times.arrival[0]),
        seeds=task.setting.seeds,
        first_seed=task.setting.seed,
        threads=task.setting.threads,
        progress=progress,
        after_trial=task.count_trial,
    )
    kernel = "symmetric" if lockstep.is_symmetric else "lockstep"
    result = task.result(lockstep.log, kernel, lockstep.seed, lockstep.is_interrupted)
    if task.times.is_uniform or result.num_transfers > _MAX_RETIMED_TRANSFERS:
        return result
    from collhub_tacos.schedules.retiming import retime

    return replace(result, schedule_or_log=retime(result.schedule(), task.times))


def _spread_on_trees(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Spread every chunk on a tree; the trees share the load of the links. Try several seeds.

    Returns the fastest schedule, of equal ones that of the lowest seed, with the kernel "trees".
    The seeds are consecutive, from the setting's seed on. Their number is that of the setting. If
    it is 0, the number is `_PAIRS_FOR_TREE_SEEDS` (40 000) divided by links x chunks, rounded down,
    but from 1 to `_MAX_TREE_SEEDS` (4). Only a schedule of time 0 ends the search early.

    Each seed is charged to the request's budget. After Ctrl-C or at a limit, the best result so
    far is returned, marked as interrupted. Without a result, the exception is raised again.
    Raises `InputError` (`disconnected`) for a member that a chunk cannot reach.
    """
    from collhub_tacos.routing.routes import spread

    first, needed = task.setting.seed, task.members()
    result = find_best_of_seeds(
        lambda seed, report: spread(
            task.network, task.times, task.origin, needed, seed, drop_activity(report)
        ),
        lambda schedule: schedule.time_ps,
        range(first, first + task.seeds(_PAIRS_FOR_TREE_SEEDS, _MAX_TREE_SEEDS)),
        goal=0,
        threads=task.setting.threads,
        progress=report_activity(progress, "multicast"),
        after_trial=task.count_trial,
    )
    return task.result(result.result, "trees", result.seed, result.is_interrupted)
