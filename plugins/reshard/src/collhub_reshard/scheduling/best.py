"""Find the best schedule of some tasks: inexpensive methods first, until one meets a bound.

The last method is the optimal schedule by constraint programming: OR-tools' CP-SAT on integral
ticks. Optional intervals of tasks on the cards of hosts (section 4.2 of the model of "On Optimizing
the Communication of Model Parallelism", MLSys 2023), with the analytic bound as a cut, the load of
every sender below the makespan, and equal tasks in order.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import add
from typing import Any

from collhub_shardings import UnitTasks

from collhub_reshard.scheduling import special_cases
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.list_schedules import (
    assign_senders,
    balance_senders,
    can_anneal,
    generate_list_orders,
    generate_rotations,
    improve_order,
)
from collhub_reshard.scheduling.public_orders import list_public_orders
from collhub_reshard.scheduling.schedule import (
    Bound,
    HostSchedule,
    Order,
    Piece,
    compute_fluid_bound,
    compute_lateness,
    compute_makespan,
    compute_unsplit_bound,
    schedule_in_order,
)
from hub_core.model import Diagnostic, Severity
from hub_core.plugin_api import SearchBudget

# Above this number of tasks, building the model of CP-SAT takes longer than its gain justifies.
MAX_TASKS_OF_SOLVER = 500
# Above this number of tasks, only schedules by priority are built.
_MAX_TASKS_OF_SEARCH = 2_000
_ROUNDS = 8
# Tasks that annealing places at effort 1: two to three CPU seconds.
_PLACEMENTS = 300_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    """Work that the search for a schedule may do.

    `split`: tasks may be split. `work`: limit of counted work, relative to the default (two to
    three CPU seconds of annealing, ten of CP-SAT); 0 leaves only heuristics. `budget`: the time
    limit of the user, at which the best schedule so far is returned; it counts a step of work for
    each task that annealing places.
    """

    split: bool = False
    work: float = 1.0
    budget: SearchBudget = field(default_factory=SearchBudget, compare=False)


def find_best_schedule(tasks: HostTasks, units: UnitTasks, effort: Effort) -> HostSchedule:
    """Find the best schedule of tasks on network cards within the limits of the effort.

    If splitting is requested and possible (`can_split`) and there are tasks, the split schedule is
    returned; it is optimal if its makespan equals the fluid bound. Otherwise these methods are
    tried in order: colours, priorities, public orders, choice of senders with rotations,
    annealing, CP-SAT. The schedule with the smallest lateness of its latest task is kept; of equal
    ones, that with the smallest makespan, then the first. The search ends when no task is late and
    the makespan meets the largest known lower bound, or when CP-SAT proves the schedule.

    Fewer methods are used in two cases: with more than `_MAX_TASKS_OF_SEARCH` (2000) tasks none
    after the priorities; if `effort.work` is 0 or the time limit has passed, none after the public
    orders. Methods that the time limit omits are recorded as a cut of `effort.budget`. Annealing is
    used for two or more tasks (`can_anneal`). CP-SAT is used if it is installed, for at most
    `MAX_TASKS_OF_SOLVER` (500) tasks with times that are small enough (`fits_solver`). See
    `_ScheduleSearch.schedule` for the status and the proof.
    """
    if effort.split and special_cases.can_split(tasks) and len(tasks):
        # Tasks are split, so the bound by the longest task does not apply.
        bound = compute_fluid_bound(tasks)
        pieces = special_cases.build_split_schedule(tasks)
        is_reached = compute_makespan(pieces) == bound.ticks
        status, proof = ("optimal", "bound") if is_reached else ("feasible", "none")
        return HostSchedule(pieces, "split", status, proof, bound, bound.ticks)
    bound = compute_unsplit_bound(tasks)
    # The strategies of the tasks are fixed here, and may carry the bytes several times.
    longest = max(map(add, tasks.release, map(min, tasks.durations)), default=0)
    search = _ScheduleSearch(tasks, max(bound.whole_ticks, longest))
    _try_heuristics(search, units)
    if search.is_done or not effort.work or len(tasks) > _MAX_TASKS_OF_SEARCH:
        return search.schedule(bound)
    budget = effort.budget
    if budget.reason:
        budget.cut("search of schedules", "senders, annealing, CP-SAT")
        return search.schedule(bound)
    _try_senders(search)
    if not search.is_done and can_anneal(tasks):
        placements = int(effort.work * _PLACEMENTS)
        order = improve_order(tasks, search.pieces, search.lower_bound, placements, budget)
        search.add(order, "annealing")
    if not search.is_done and is_solver_installed() and _suits_solver(tasks):
        if budget.reason:
            budget.cut("search of schedules", "CP-SAT")
            return search.schedule(bound)
        solved = solve_exactly(tasks, search.lower_bound, search.pieces, effort.work, budget.left_s)
        if budget.reason and (solved is None or not solved.is_optimal):
            budget.cut("CP-SAT", "the rest of its search")
        if solved is not None:
            search.add_pieces(solved.pieces, "cp-sat")
            search.solver_bound = max(search.solver_bound, solved.lower_bound)
            search.is_solved = solved.is_optimal
    return search.schedule(bound)


@dataclass(slots=True)
class _ScheduleSearch:
    """The best schedule so far; `is_solved` if a solver proves it.

    `strategy_bound`: of the analytic bounds, for the strategies of the tasks; `solver_bound`: of a
    solver. Both in ticks.
    """

    tasks: HostTasks
    strategy_bound: int
    pieces: tuple[Piece, ...] = ()
    method: str = "nothing"
    is_solved: bool = False
    solver_bound: int = 0

    @property
    def lower_bound(self) -> int:
        """The best bound in ticks for the strategies of the tasks."""
        return max(self.strategy_bound, self.solver_bound)

    @property
    def is_done(self) -> bool:
        """Whether no schedule can be better than the best one so far.

        This is so in three cases: the solver has proved it; there are no tasks; or there is a
        schedule with a makespan of at most the lower bound in which no task is late.
        """
        if self.is_solved or not len(self.tasks):
            return True
        is_met = bool(self.pieces) and compute_makespan(self.pieces) <= self.lower_bound
        return is_met and not compute_lateness(self.tasks, self.pieces)

    def add(self, order: Order, method: str) -> None:
        """Schedule the tasks in an order; store the schedule and the name of the method if it is
        better (`add_pieces`).
        """
        self.add_pieces(schedule_in_order(self.tasks, order), method)

    def add_pieces(self, pieces: tuple[Piece, ...], method: str) -> None:
        """Use a schedule if it is less late, or equally late and shorter; ties keep the first."""
        if not self.pieces or self._cost(pieces) < self._cost(self.pieces):
            self.pieces, self.method = pieces, method

    def schedule(self, bound: Bound) -> HostSchedule:
        """Return the best schedule so far with its status, lower bound and kind of proof.

        `bound`: the lower bound of any schedule. `rounded` below is `bound` in ticks, rounded up.
        The first case that applies:

        1. Some task has a `work` other than 1, i.e. its data are sent several times. The status is
           "optimal" with the proof `bound` if the makespan is exactly `bound` and the search is
           done (`is_done`), otherwise "feasible" with the proof `none`. The lower bound is the
           exact `bound`.
        2. A solver has proved the schedule: "optimal", proof `solver`. The lower bound is the
           makespan.
        3. The search is done: "optimal". The proof is `bound` if the makespan is at most `rounded`,
           otherwise `solver`.
        4. Otherwise: "feasible", proof `none`.

        In cases 3 and 4 the lower bound is the larger one of `rounded` and `solver_bound`, in
        ticks. The search is done without tasks, and if no task is late and the makespan is at most
        `lower_bound`.
        """
        makespan = compute_makespan(self.pieces)
        if any(work != 1 for work in self.tasks.work):
            is_met = self.is_done and makespan == bound.ticks
            status, proof = ("optimal", "bound") if is_met else ("feasible", "none")
            return HostSchedule(self.pieces, self.method, status, proof, bound, bound.ticks)
        lower = Fraction(max(bound.whole_ticks, self.solver_bound))
        status, proof = "feasible", "none"
        if self.is_solved:
            # CP-SAT proves lateness and makespan together; only the makespan is a bound here.
            status, proof, lower = "optimal", "solver", makespan
        elif self.is_done:
            status, proof = "optimal", "bound" if makespan <= bound.whole_ticks else "solver"
        return HostSchedule(self.pieces, self.method, status, proof, bound, lower)

    def _cost(self, pieces: Sequence[Piece]) -> tuple[Fraction, Fraction]:
        """Return (lateness, makespan) in ticks, by which schedules are compared in this order;
        smaller is better.
        """
        return compute_lateness(self.tasks, pieces), compute_makespan(pieces)


def could_use_solver(tasks: HostTasks, schedule: HostSchedule, effort: Effort) -> bool:
    """Return whether OR-tools is missing although a search by CP-SAT could improve the result.

    True if OR-tools is not installed, the status of `schedule` is not `optimal`, and
    `find_best_schedule` would have used CP-SAT: `effort.work` is above 0, the time limit has not
    passed, the tasks are not split, and the limits of the solver (`_suits_solver`) permit them.
    """
    is_open = schedule.status != "optimal" and schedule.method != "split"
    can_search = effort.work > 0 and not effort.budget.reason and _suits_solver(tasks)
    return is_open and can_search and not is_solver_installed()


def _suits_solver(tasks: HostTasks) -> bool:
    return len(tasks) <= MAX_TASKS_OF_SOLVER and fits_solver(tasks)


def _try_senders(search: _ScheduleSearch) -> None:
    """Try schedules with better choices of senders; the search keeps each that is an improvement.

    1. If the assignment problem can be solved (`assign_senders`), its lower bound raises
       `solver_bound` of the search if it is larger. The optimal senders are tried in all 8 orders
       by priority (method "senders").
    2. The rotations (`generate_rotations`) of the balanced senders (`balance_senders`), then of the
       optimal ones if they exist, are tried (method "rotation"). Before each rotation, the method
       returns if `is_done`: no schedule can be better.
    """
    tasks = search.tasks
    senders = [balance_senders(tasks)]
    assignment = assign_senders(tasks)
    if assignment is not None:
        search.solver_bound = max(search.solver_bound, assignment.lower_bound)
        senders.append(list(assignment.senders))
        for order in generate_list_orders(tasks, _ROUNDS, senders[-1]):
            search.add(order, "senders")
    for chosen in senders:
        for order in generate_rotations(tasks, chosen):
            if search.is_done:
                return
            search.add(order, "rotation")


def _try_heuristics(search: _ScheduleSearch, units: UnitTasks) -> None:
    """Add the schedules of fast methods to `search`, in a fixed order; nothing without tasks.

    1. `colours`: one schedule, only if `is_colourable`
    2. `priorities`: the orders of `generate_list_orders`, in 8 rounds (`_ROUNDS`), or in 2 rounds
       above 2000 tasks (`_MAX_TASKS_OF_SEARCH`)
    3. the orders of `list_public_orders`, each with its name; none above 2000 tasks

    Before each order of 2 and 3, the function returns if `search.is_done`: no better schedule is
    possible.
    """
    tasks = search.tasks
    if not len(tasks):
        return
    if special_cases.is_colourable(tasks):
        search.add_pieces(special_cases.schedule_by_colours(tasks), "colours")
    rounds = _ROUNDS if len(tasks) <= _MAX_TASKS_OF_SEARCH else 2
    for order in generate_list_orders(tasks, rounds, balance_senders(tasks)):
        if search.is_done:
            return
        search.add(order, "priorities")
    if len(tasks) > _MAX_TASKS_OF_SEARCH:
        return
    for name, make in list_public_orders(tasks, units).items():
        if search.is_done:
            return
        search.add(make(), name)


# The solver counts in int64, and sums of times must fit too.
_MAX_TICKS = 1 << 48
_MAX_TICKS_WITH_DUE = 1 << 28
_SEED = 1
# Limit of CP-SAT's own measure of work, which is about a second of one core.
_DETERMINISTIC_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Solved:
    """A schedule of the solver; `lower_bound` in ticks; `is_optimal`: the bound is achieved."""

    pieces: tuple[Piece, ...]
    lower_bound: int
    is_optimal: bool


def is_solver_installed() -> bool:
    """Return whether the module `ortools` can be found; it is not imported."""
    return importlib.util.find_spec("ortools") is not None


def count_workers() -> int:
    """Return the number of threads of the solver: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report_missing_solver() -> Diagnostic:
    """Return the warning `no-solver`: schedules are heuristic without OR-tools; the cure is the
    command that installs it.
    """
    return Diagnostic(
        "no-solver",
        "OR-tools is not installed: the schedule is heuristic, and optimal only if its bound"
        " proves it",
        Severity.WARNING,
        cure="python -m pip install 'collhub-reshard[exact]'",
    )


def fits_solver(tasks: HostTasks) -> bool:
    """Return whether the times of all tasks are small enough for the solver.

    The sum of the longest duration of every task plus the latest release, in ticks, must be
    below `_MAX_TICKS`, or below `_MAX_TICKS_WITH_DUE` if any task has a due time: the
    objective is then of the size of a squared time. True without tasks.
    """
    longest = _MAX_TICKS if all(due is None for due in tasks.due) else _MAX_TICKS_WITH_DUE
    # No schedule takes longer than the last release plus all tasks in sequence.
    times = sum(max(row) for row in tasks.durations) + max(tasks.release, default=0)
    return times < longest


@dataclass(slots=True)
class _Model:
    """The variables of a model while it is built."""

    model: Any
    makespan: Any
    starts: list[Any] = field(default_factory=list)
    presences: list[list[Any]] = field(default_factory=list)
    on_card: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    loads: dict[int, list[Any]] = field(default_factory=dict)


def solve_exactly(
    tasks: HostTasks,
    least: int,
    hint: Sequence[Piece],
    work: float,
    time_limit_s: float | None = None,
) -> Solved | None:
    """Search for the best schedule with the solver CP-SAT, beginning with the schedule `hint`.

    The best schedule has the smallest lateness of its latest task, then the smallest makespan.
    `hint` has one piece per task. If no task has a due time, only schedules not longer than `hint`
    are searched. `least`: lower bound of the makespan in ticks. Limits: `work` * 10 deterministic
    seconds of the solver, and `time_limit_s` if given (at least 1 ms).

    Returns None if there is no schedule within the limits. Otherwise: the pieces by start, then
    task; a lower bound of the makespan in ticks (that of the solver, or `least` if any task has a
    due time); whether the schedule is proven optimal. The result is reproducible unless
    `time_limit_s` stops the search. Raises `ImportError` without OR-tools, and `ValueError` without
    tasks.
    """
    # Imported here: it takes a second, and is an extra.
    from ortools.sat.python import cp_model

    has_due_times = any(due is not None for due in tasks.due)
    if has_due_times:
        # Due times may require a longer schedule than the hint.
        horizon = sum(max(row) for row in tasks.durations) + max(tasks.release)
    else:
        horizon = int(max(piece.end for piece in hint))
    model = _build_model(cp_model, tasks, least, horizon)
    for piece in hint:
        model.model.add_hint(model.starts[piece.task], int(piece.start))
        for number, sender in enumerate(tasks.senders[piece.task]):
            model.model.add_hint(model.presences[piece.task][number], sender == piece.sender)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = _DETERMINISTIC_SECONDS * work
    if time_limit_s is not None:
        # 0 would mean no time limit.
        solver.parameters.max_time_in_seconds = max(time_limit_s, 1e-3)
    solver.parameters.interleave_search = True
    solver.parameters.num_workers = count_workers()
    solver.parameters.random_seed = _SEED
    status = solver.solve(model.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    unordered = []
    for task, start in enumerate(model.starts):
        chosen = [solver.boolean_value(presence) for presence in model.presences[task]]
        sender = tasks.senders[task][chosen.index(True)]
        ticks = tasks.duration(task, sender)
        unordered.append(Piece(task, sender, Fraction(solver.value(start)), Fraction(ticks)))
    pieces = tuple(sorted(unordered, key=lambda piece: (piece.start, piece.task)))
    is_optimal = status == cp_model.OPTIMAL
    if has_due_times:
        # The solver's bound is one of lateness and makespan combined.
        return Solved(pieces, least, is_optimal)
    return Solved(pieces, int(solver.best_objective_bound), is_optimal)


def _build_model(cp_model: Any, tasks: HostTasks, least: int, horizon: int) -> _Model:
    """Build the CP-SAT model: starts, senders, card intervals, loads and the objective.

    Times are integers in ticks. The constraints are:

    - The makespan is at least `least` and at most max(`least`, `horizon`). No task ends after it.
    - A task starts between its release and `horizon`. It has exactly one of its possible senders.
    - In each direction (sending, receiving), at most `tasks.cards` intervals of a host overlap.
    - The summed durations that a host sends are at most the makespan times `tasks.cards`.
    - Tasks with equal senders, receivers, durations, release and due time start in the order of
      their numbers.

    The objective is first the lateness of the latest task, then the makespan. Lateness is at
    least 0 and at most `horizon`; it is 0 without due times. The model is infeasible if the
    limits cannot be met.
    """
    model = cp_model.CpModel()
    built = _Model(model, model.new_int_var(least, max(least, horizon), "makespan"))
    for task in range(len(tasks)):
        _add_task(built, tasks, task, horizon)
    for intervals in built.on_card.values():
        if tasks.cards == 1:
            model.add_no_overlap(intervals)
        else:
            model.add_cumulative(intervals, [1] * len(intervals), tasks.cards)
    # Without this cut hard cases of some tens of tasks stay unproven.
    for terms in built.loads.values():
        model.add(sum(terms) <= built.makespan * tasks.cards)
    # An order of equal tasks excludes only equivalent permutations, so the optimum remains.
    before: dict[object, int] = {}
    for task in range(len(tasks)):
        key = (
            tasks.senders[task],
            tasks.receivers[task],
            tasks.durations[task],
            tasks.release[task],
            tasks.due[task],
        )
        if key in before:
            model.add(built.starts[before[key]] <= built.starts[task])
        before[key] = task
    dues = [(task, due) for task, due in enumerate(tasks.due) if due is not None]
    lateness = model.new_int_var(0, horizon, "lateness") if dues else 0
    for task, due in dues:
        lengths = zip(built.presences[task], tasks.durations[task], strict=True)
        # One presence is 1: the sum is the length from the chosen sender.
        length = sum(presence * ticks for presence, ticks in lengths)
        model.add(built.starts[task] + length - due <= lateness)
    model.minimize(lateness * (max(least, horizon) + 1) + built.makespan)
    return built


def _add_task(built: _Model, tasks: HostTasks, task: int, horizon: int) -> None:
    """Add a task to the model: its start, the choice of exactly one sender, its card intervals.

    The start is between the release and `horizon`, in ticks. Each sender has an interval of its
    duration, which is present only if this sender is chosen. The interval is added to the outgoing
    cards of the sender and to the incoming cards of every receiver. If all durations are equal,
    the receivers have one interval that is always present instead.

    The makespan is at least the end of the task. `built` is changed: `starts`, `presences` (one
    Boolean per sender), `on_card` (intervals by ("in" or "out", host)) and `loads` (ticks by
    sender, if chosen). Due times and the number of cards are added elsewhere.
    """
    model = built.model
    start = model.new_int_var(tasks.release[task], horizon, f"start{task}")
    presences = []
    ticks = tasks.durations[task]
    for sender, length in zip(tasks.senders[task], ticks, strict=True):
        presence = model.new_bool_var(f"sends{task}from{sender}")
        interval = model.new_optional_fixed_size_interval_var(start, length, presence, "")
        built.on_card.setdefault(("out", sender), []).append(interval)
        built.loads.setdefault(sender, []).append(length * presence)
        model.add(built.makespan >= start + length).only_enforce_if(presence)
        presences.append(presence)
        # If durations depend on the sender, so do the intervals on the receivers' cards.
        for host in tasks.receivers[task] if len(set(ticks)) > 1 else ():
            built.on_card.setdefault(("in", host), []).append(interval)
    model.add_exactly_one(presences)
    if len(set(ticks)) == 1:
        interval = model.new_fixed_size_interval_var(start, ticks[0], "")
        for host in tasks.receivers[task]:
            built.on_card.setdefault(("in", host), []).append(interval)
    built.starts.append(start)
    built.presences.append(presences)
