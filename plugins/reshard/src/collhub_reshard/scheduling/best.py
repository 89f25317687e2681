"""Find the best schedule of some tasks: inexpensive methods first, until one meets a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from collhub_shardings import UnitTasks

from collhub_reshard.scheduling import annealing, exact, special_cases
from collhub_reshard.scheduling.bounds import Bound, compute_fluid_bound, compute_unsplit_bound
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.list_schedules import (
    assign_senders,
    balance_senders,
    generate_list_orders,
)
from collhub_reshard.scheduling.public_orders import list_public_orders
from collhub_reshard.scheduling.schedule import (
    HostSchedule,
    Order,
    Piece,
    compute_lateness,
    compute_makespan,
    schedule_in_order,
)
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
    """Find a schedule, with the largest lower bound that is known.

    The schedule never takes longer than any of the public orders. The search ends with the first
    method that meets the bound: priorities, colours, public orders, splitting where requested, the
    best choice of senders, rotations, annealing, CP-SAT. If tasks have due times, the lateness of
    the latest task is minimized before the makespan.
    """
    if effort.split and special_cases.can_split(tasks) and len(tasks):
        return _schedule_split(tasks)
    bound = compute_unsplit_bound(tasks)
    search = _ScheduleSearch(tasks, bound.whole_ticks)
    _try_heuristics(search, units)
    if search.is_done or not effort.work or len(tasks) > _MAX_TASKS_OF_SEARCH:
        return search.schedule(bound)
    budget = effort.budget
    if budget.reason:
        budget.cut("search of schedules", "senders, annealing, CP-SAT")
        return search.schedule(bound)
    _try_senders(search)
    if not search.is_done and annealing.is_applicable(tasks):
        placements = int(effort.work * _PLACEMENTS)
        order = annealing.improve_order(
            tasks, search.pieces, search.lower_bound, placements, budget
        )
        search.add(order, "annealing")
    is_small = len(tasks) <= MAX_TASKS_OF_SOLVER
    if not search.is_done and is_small and exact.is_installed() and exact.fits_solver(tasks):
        if budget.reason:
            budget.cut("search of schedules", "CP-SAT")
            return search.schedule(bound)
        solved = exact.solve(tasks, search.lower_bound, search.pieces, effort.work, budget.left_s)
        if budget.reason and (solved is None or not solved.is_optimal):
            budget.cut("CP-SAT", "the rest of its search")
        if solved is not None:
            search.add_pieces(solved.pieces, "cp-sat")
            search.lower_bound = max(search.lower_bound, solved.lower_bound)
            search.is_solved = solved.is_optimal
    return search.schedule(bound)


@dataclass(slots=True)
class _ScheduleSearch:
    """The best schedule so far; `lower_bound` in ticks; `is_solved` if a solver proves it."""

    tasks: HostTasks
    lower_bound: int
    pieces: tuple[Piece, ...] = ()
    method: str = "nothing"
    is_solved: bool = False

    @property
    def is_done(self) -> bool:
        """Whether no schedule can be better: the bound is achieved, and no task is late."""
        if self.is_solved or not len(self.tasks):
            return True
        is_met = bool(self.pieces) and compute_makespan(self.pieces) <= self.lower_bound
        return is_met and not compute_lateness(self.tasks, self.pieces)

    def add(self, order: Order, method: str) -> None:
        """Use the schedule of an order if it is better."""
        self.add_pieces(schedule_in_order(self.tasks, order), method)

    def add_pieces(self, pieces: tuple[Piece, ...], method: str) -> None:
        """Use a schedule if it is less late, or equally late and shorter; ties keep the first."""
        if not self.pieces or self._cost(pieces) < self._cost(self.pieces):
            self.pieces, self.method = pieces, method

    def schedule(self, bound: Bound) -> HostSchedule:
        """Return the result and its proof: the analytic `bound`, a solver, or none."""
        lower = Fraction(self.lower_bound)
        if not self.is_done:
            return HostSchedule(self.pieces, self.method, "feasible", "none", bound, lower)
        is_by_bound = compute_makespan(self.pieces) <= bound.whole_ticks and not self.is_solved
        if self.is_solved:
            # CP-SAT proves lateness and makespan together; only the makespan is a bound here.
            lower = compute_makespan(self.pieces)
        proof = "bound" if is_by_bound else "solver"
        return HostSchedule(self.pieces, self.method, "optimal", proof, bound, lower)

    def _cost(self, pieces: Sequence[Piece]) -> tuple[Fraction, Fraction]:
        """Return (lateness, makespan), by which schedules are compared."""
        return compute_lateness(self.tasks, pieces), compute_makespan(pieces)


def could_use_solver(schedule: HostSchedule, effort: Effort) -> bool:
    """Return whether CP-SAT, if it were installed, might find a better schedule or a proof."""
    is_open = schedule.status != "optimal" and effort.work > 0
    return is_open and not exact.is_installed()


def _try_senders(search: _ScheduleSearch) -> None:
    """Improve the bound and the schedule by the best choice of senders, then by rotations."""
    tasks = search.tasks
    senders = [balance_senders(tasks)]
    assignment = assign_senders(tasks)
    if assignment is not None:
        search.lower_bound = max(search.lower_bound, assignment.lower_bound)
        senders.append(list(assignment.senders))
        for order in generate_list_orders(tasks, _ROUNDS, senders[-1]):
            search.add(order, "senders")
    for chosen in senders:
        for order in annealing.generate_rotations(tasks, chosen):
            if search.is_done:
                return
            search.add(order, "rotation")


def _schedule_split(tasks: HostTasks) -> HostSchedule:
    """Build the schedule of tasks that may be split, with its proof."""
    # Tasks are split, so the bound by the longest task does not apply.
    bound = compute_fluid_bound(tasks)
    pieces = special_cases.build_split_schedule(tasks)
    is_reached = compute_makespan(pieces) == bound.ticks
    status, proof = ("optimal", "bound") if is_reached else ("feasible", "none")
    return HostSchedule(pieces, "split", status, proof, bound, bound.ticks)


def _try_heuristics(search: _ScheduleSearch, units: UnitTasks) -> None:
    """Try colours, priorities and the public orders, until one meets the bound."""
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
