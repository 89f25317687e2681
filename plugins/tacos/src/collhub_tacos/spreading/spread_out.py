"""Bring chunks to all who need them: which kernel does it on which network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from collhub_tacos.bounds.time_cuts import find_tightest_cut, supports_time_cuts
from collhub_tacos.candidates import Trials
from collhub_tacos.networks.link_network import FREE, LinkNetwork, LinkTimes
from collhub_tacos.networks.switches import PathNetwork
from collhub_tacos.networks.symmetry import Translations
from collhub_tacos.schedules.arrival_log import ArrivalLog
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.seed_search import Progress, drop_activity, find_best_of_seeds, report_activity
from collhub_tacos.setting import Setting
from collhub_tacos.spreading.staged import (
    free_all_gathers,
    group_grids,
    staged_all_gathers,
    staged_broadcasts,
)
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import CollectiveKind, InputError
from hub_core.schedules import fastest_of

_MOST_SEEDS = 20
# Numbers of (link, chunk) pairs, by which the cost of a kernel goes, and of transfers.
_PAIRS_FOR_SEEDS = 400_000
_PAIRS_FOR_TREE_SEEDS, _MOST_TREE_SEEDS = 40_000, 4
_PAIRS_FOR_TREES_AS_WELL = 20_000
_PAIRS_FOR_SYMMETRY = 20_000_000
_TRANSFERS_TO_RETIME = 2_000_000
# Numbers of steps of an exact search, each with some seconds of work.
_MAX_EXACT_TRIES = 3
# Pairs of a node and a chunk up to which a seed of a matching takes less than a second.
_CELLS_FOR_MATCHING = 100_000
_CELLS_FOR_MATCHING_SEEDS, _MOST_MATCHING_SEEDS = 120_000, 20
_GIB = 2**30


@dataclass(frozen=True, slots=True, eq=False)
class SpreadTask:
    """Chunk x is to come from NPU `origin[x]` to all members of the setting, over `network`.

    `network`: that of the setting, or its transpose; `times`: of a message of one chunk on it.
    `trials`: of plans behind switches with this number of chunks.
    """

    setting: Setting
    network: LinkNetwork
    times: LinkTimes
    origin: Int64Array
    trials: Trials

    @property
    def num_pairs(self) -> int:
        """Pairs of a link and a chunk."""
        return self.network.num_links * len(self.origin)

    @property
    def num_cells(self) -> int:
        """Pairs of a node and a chunk."""
        return self.network.num_nodes * len(self.origin)

    @property
    def is_everywhere(self) -> bool:
        """Whether all NPUs take part, each with chunks of its own: an all-gather."""
        # Kernels for all NPUs need a chunk from each.
        has_each = len(np.unique(self.origin)) == self.network.num_npus
        return has_each and not self.setting.has_relays

    def members(self) -> BoolArray:
        """Who takes part: bool per node."""
        is_member = np.zeros(self.network.num_nodes, np.bool_)
        is_member[self.setting.members] = True
        return is_member

    def seeds(self, pairs: int, most: int) -> int:
        """Stated number of seeds, or how many are worth their time with `pairs` for all."""
        return self.setting.seeds or max(1, min(most, pairs // max(1, self.num_pairs)))

    def seeds_of_matching(self) -> int:
        """Stated number of seeds, or how many are worth their time."""
        worth = _CELLS_FOR_MATCHING_SEEDS // max(1, self.num_cells)
        return self.setting.seeds or max(1, min(_MOST_MATCHING_SEEDS, worth))

    def count_trial(self) -> None:
        """Count the work of a seed: as many steps as nodes receive chunks. May raise."""
        self.setting.budget.spend(self.num_cells)

    def result(
        self, made: LinkSchedule | ArrivalLog, kernel: str, seed: int, is_interrupted: bool
    ) -> SpreadResult:
        """What a kernel made of it."""
        members = self.setting.members
        return SpreadResult(made, self.times, self.origin, members, kernel, seed, is_interrupted)


@dataclass(frozen=True, slots=True, eq=False)
class SpreadResult:
    """Chunk x from NPU `origin[x]` to every node that needs it: a schedule, or a lockstep log.

    `kernel`, `seed`: what made it. `needed`: the NPUs that need all chunks, None for others
    (routing). `exact_search`: why an exact search has no schedule at the bound, empty if it has
    one or does not apply.
    """

    made: LinkSchedule | ArrivalLog
    times: LinkTimes
    origin: Int64Array
    needed: Int64Array | None
    kernel: str
    seed: int
    is_interrupted: bool = False
    exact_search: str = ""

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        return self.made.time_ps

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        if isinstance(self.made, ArrivalLog):
            return self.made.num_transfers
        return len(self.made)

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """All transfers, or those from or to `nodes`."""
        if isinstance(self.made, ArrivalLog):
            return self.made.schedule(nodes)
        return self.made if nodes is None else self.made.select_touching(nodes)

    def replay(self, progress: Progress) -> bool:
        """Check it on its own arrays, without expanding a log.

        False where there is no way: at switches, and for routes. Raises `InputError` that names the
        first offence.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.schedules.replay import replay, replay_log

        if isinstance(self.made, ArrivalLog):
            replay_log(self.made, self.times, self.origin, report_activity(progress, "replaying"))
            return True
        if self.needed is None or isinstance(self.made.network, PathNetwork):
            return False
        chunk = np.arange(len(self.origin))
        # Every chunk to every NPU that takes part.
        wanted_chunk = np.repeat(chunk, len(self.needed))
        wanted_node = np.tile(self.needed, len(chunk))
        replay(self.made, self.times, self.origin, (wanted_chunk, wanted_node))
        return True


def _own_time_ps(result: SpreadResult) -> int:
    return result.time_ps


def spread_out(
    task: SpreadTask,
    progress: Progress,
    time_ps: Callable[[SpreadResult], int] = _own_time_ps,
) -> SpreadResult:
    """Bring all chunks to all members, by the kernels that fit, the one of least time kept.

    Ctrl-C ends the search; without a result it is raised again. Raises `InputError` for a network
    that does not connect those who must be, and for a log beyond the setting's memory.
    """
    best = fastest_of(_results(task, progress), time_ps)
    # There is a kernel for every network.
    assert best is not None
    return best


def _results(task: SpreadTask, progress: Progress) -> Iterator[SpreadResult]:
    """What the kernels that fit make, until one is as early as any can be."""
    has_goal = task.is_everywhere and not isinstance(task.network, PathNetwork)
    for kernel in _kernels(task):
        result = kernel(task, progress)
        yield result
        if has_goal and result.time_ps <= _goal_ps(task):
            return


def spread_freely(task: SpreadTask) -> list[SpreadResult]:
    """Ways to spread without turns, whose time a simulator has to tell; few, or none.

    Their own times are those of messages that do not meet. Not where all pairs of NPUs are alike,
    unless switches multicast or reduce, nor for what is too large to be simulated again and again.
    """
    is_small = task.setting.is_compared(len(task.origin)) and task.setting.requested_ranks is None
    has_stages = isinstance(task.network, PathNetwork) and not task.setting.has_relays
    is_multiplied = bool(task.network.topology.multicast or task.network.topology.reduction)
    is_worth = is_multiplied or (task.is_everywhere and not task.times.is_equal)
    if not (is_small and has_stages and is_worth):
        return []
    free = replace(task, times=replace(task.times, rule=FREE))
    return [
        free.result(schedule, "free stages", task.setting.seed, False)
        for schedule in free_all_gathers(task.network, free.times, task.origin)
    ]


_SpreadKernel = Callable[[SpreadTask, Progress], SpreadResult]


def _kernels(task: SpreadTask) -> Iterator[_SpreadKernel]:
    """Kernels that fit: trees on loaded links at switches, lockstep, symmetry, and events."""
    if isinstance(task.network, PathNetwork):
        yield from _kernels_at_switches(task)
        return
    is_everywhere = task.is_everywhere
    fits_lockstep = is_everywhere and task.times.is_equal
    if fits_lockstep:
        # First, because its log stays small.
        yield _in_steps
        # Steps then are exact, and no other kernel was seen to be faster.
        if task.times.is_uniform:
            return
    if is_everywhere and task.num_pairs <= _PAIRS_FOR_SYMMETRY:
        translations = Translations.of(task.network, task.origin, task.times)
        if translations is not None:
            yield partial(_symmetric, translations)
    if not fits_lockstep or task.num_pairs <= _PAIRS_FOR_SEEDS:
        yield _by_events


def _kernels_at_switches(task: SpreadTask) -> Iterator[_SpreadKernel]:
    """Stages where they are possible, and trees where these are few or the only way."""
    is_staged = False
    # Stages need groups of equal size: one failed link may leave none of them.
    for schedule in () if task.setting.has_relays else _staged(task):
        is_staged = True
        yield partial(_as_staged, schedule)
    # On networks that are alike from everywhere, trees were not seen to be faster than stages.
    is_regular = task.times.is_equal or bool(group_grids(task.network, task.times))
    if not (is_staged and is_regular and task.num_pairs > _PAIRS_FOR_TREES_AS_WELL):
        yield _on_trees


def _staged(task: SpreadTask) -> Iterator[LinkSchedule]:
    """Schedules in stages: of an all-gather, or of a broadcast."""
    if task.is_everywhere:
        return staged_all_gathers(task.network, task.times, task.origin, task.trials)
    root, chunks = int(task.origin[0]), len(task.origin)
    return staged_broadcasts(task.network, task.times, root, chunks, task.trials)


def _as_staged(schedule: LinkSchedule, task: SpreadTask, progress: Progress) -> SpreadResult:
    progress(0.0, "spreading in stages")
    return task.result(schedule, "stages", task.setting.seed, False)


def _symmetric(translations: Translations, task: SpreadTask, progress: Progress) -> SpreadResult:
    """One node's part for all."""
    # Imported here and below: numba takes a second.
    from collhub_tacos.spreading.heterogeneous import fewest_ps
    from collhub_tacos.spreading.symmetric import find_all_gather

    found = find_all_gather(
        task.network,
        translations,
        task.times,
        task.origin,
        task.setting.seeds or _MOST_SEEDS,
        task.setting.seed,
        fewest_ps(task.network, task.times, task.origin),
        progress,
        task.count_trial,
    )
    return task.result(found.result, "symmetric", found.seed, found.is_interrupted)


def _by_events(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Causal events on links of any times and, where that is not at the bound, by deadlines."""
    from collhub_tacos.spreading.heterogeneous import find_all_gather
    from collhub_tacos.spreading.matching import MOST_LOOKS, before_deadlines, looks

    found = find_all_gather(
        task.network,
        task.times,
        task.origin,
        task.seeds(_PAIRS_FOR_SEEDS, _MOST_SEEDS),
        task.setting.seed,
        task.setting.threads,
        progress,
        task.members(),
        task.count_trial,
    )
    is_small = looks(task.network, len(task.origin)) <= MOST_LOOKS
    if found.is_interrupted or not (is_small and task.is_everywhere):
        return task.result(found.result, "events", found.seed, found.is_interrupted)
    earlier = before_deadlines(
        task.network,
        task.times,
        task.origin,
        found,
        goal_ps=_goal_ps(task),
        first_seed=task.setting.seed,
        report=report_activity(progress, "meeting deadlines"),
        after_trial=task.count_trial,
    )
    kernel = "events" if earlier.result is found.result else "deadlines"
    return task.result(earlier.result, kernel, earlier.seed, earlier.is_interrupted)


def _in_steps(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Equal steps in lockstep and, where that is not at the bound, by matchings and exactly."""
    from collhub_tacos.spreading.matching import best_matched_all_gather

    # Mostly at the bound, and the cheapest of all.
    found = _in_lockstep(task, progress)
    goal_ps = _goal_ps(task)
    # Where all nodes do alike, messages meet least: no simulator likes another order better.
    is_regular = found.kernel == "symmetric" and not task.times.is_uniform
    if found.time_ps <= goal_ps or is_regular or found.is_interrupted:
        return found
    if task.num_cells > _CELLS_FOR_MATCHING:
        return _exactly(task, goal_ps, progress, found)
    matched = best_matched_all_gather(
        task.network,
        task.times,
        task.origin,
        seeds=task.seeds_of_matching(),
        first_seed=task.setting.seed,
        goal_ps=goal_ps,
        threads=task.setting.threads,
        progress=progress,
        after_trial=task.count_trial,
    )
    if matched.result.time_ps < found.time_ps:
        found = task.result(matched.result, "matching", matched.seed, matched.is_interrupted)
    if found.is_interrupted:
        return found
    return _exactly(task, goal_ps, progress, found)


def _exactly(
    task: SpreadTask, goal_ps: int, progress: Progress, found: SpreadResult
) -> SpreadResult:
    """A faster schedule by an exact search, for small cases that miss the bound; else `found`.

    The numbers of steps that are tried begin at the bound; there are at most `_MAX_EXACT_TRIES`.
    The result states why there is no schedule at the bound.
    """
    from collhub_tacos.spreading.exact import exact_all_gather

    step_ps = int(task.times.busy[0])
    steps = -(-goal_ps // step_ps)
    has_switches = task.network.num_nodes > task.network.num_npus
    if not task.times.is_uniform or has_switches or found.time_ps <= steps * step_ps:
        return found
    progress(0.0, "exact search")
    reason = ""
    try:
        for number in range(steps, min(found.time_ps // step_ps, steps + _MAX_EXACT_TRIES)):
            left_s = task.setting.budget.left_s
            schedule = exact_all_gather(task.network, task.origin, number, step_ps, left_s)
            if not isinstance(schedule, str):
                found = task.result(schedule, "exact", 0, False)
                break
            reason = reason or f"{schedule} ({number} steps)"
    except KeyboardInterrupt:
        found = replace(found, is_interrupted=True)
    return replace(found, exact_search=reason)


@lru_cache(maxsize=1)
def _goal_ps(task: SpreadTask) -> int:
    """Time that no all-gather goes below, for all NPUs: a search may end there."""
    from collhub_tacos.spreading.heterogeneous import fewest_ps

    network = task.network
    if not supports_time_cuts(network, task.times):
        return fewest_ps(network, task.times, task.origin)
    gathering = replace(
        task.setting.collective,
        kind=CollectiveKind.ALL_GATHER,
        unit_count=len(task.origin),
    )
    members = np.arange(network.num_npus)
    cut = find_tightest_cut(gathering, network, task.times, members)
    return cut.time_ps


def _in_lockstep(task: SpreadTask, progress: Progress) -> SpreadResult:
    """Equal steps, retimed where links are free before the arrival."""
    from collhub_tacos.spreading.homogeneous import best_all_gather

    # Logs of all nodes are the largest arrays of a synthesis.
    _check_memory(task)
    found = best_all_gather(
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
    kernel = "symmetric" if found.is_symmetric else "lockstep"
    result = task.result(found.log, kernel, found.seed, found.is_interrupted)
    if task.times.is_uniform or result.num_transfers > _TRANSFERS_TO_RETIME:
        return result
    from collhub_tacos.schedules.retiming import retime

    return replace(result, made=retime(result.schedule(), task.times))


def _check_memory(task: SpreadTask) -> None:
    """Raise `InputError` where the log would take more than the setting allows."""
    from collhub_tacos.spreading.homogeneous import memory_bytes

    needed, memory = memory_bytes(task.network, len(task.origin)), task.setting.memory
    if needed > memory:
        takes = f"the schedule takes {needed / _GIB:.1f} GiB"
        raise InputError(
            f"{takes}, the option memory allows {memory / _GIB:.1f} GiB",
            cure="give -O memory=..., or fewer chunks",
            code="memory",
        )


def _on_trees(task: SpreadTask, progress: Progress) -> SpreadResult:
    """A tree a chunk on links that share the load."""
    from collhub_tacos.routing.routes import spread

    first, needed = task.setting.seed, task.members()
    found = find_best_of_seeds(
        lambda seed, report: spread(
            task.network, task.times, task.origin, needed, seed, drop_activity(report)
        ),
        lambda schedule: schedule.time_ps,
        range(first, first + task.seeds(_PAIRS_FOR_TREE_SEEDS, _MOST_TREE_SEEDS)),
        goal=0,
        threads=task.setting.threads,
        progress=report_activity(progress, "multicast"),
        after_trial=task.count_trial,
    )
    return task.result(found.result, "trees", found.seed, found.is_interrupted)
