"""The best schedule of some tasks: the cheapest method that proves itself, else the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_shardings import UnitTasks

from collhub_reshard.scheduling import colouring, exact, splitting
from collhub_reshard.scheduling.bounds import Bound, fluid_bound, unsplit_bound
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.list_schedules import list_orders
from collhub_reshard.scheduling.public_orders import all_orders
from collhub_reshard.scheduling.schedule import (
    HostSchedule,
    Piece,
    in_order,
    lateness,
    makespan_of,
)

# Above, the model of the solver takes longer to build than it is worth.
MOST_TASKS_OF_SOLVER = 500
_ROUNDS = 8
_MOST_TASKS_OF_ORDERS = 2_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look for a schedule.

    `split`: tasks may be split. `time_limit_s`: of the solver; 0 leaves it out.
    """

    split: bool = False
    time_limit_s: float = 20.0


def best_schedule(tasks: HostTasks, units: UnitTasks, effort: Effort) -> HostSchedule:
    """A schedule with the largest bound that is known.

    Never longer than any of the public orders. The first method that meets the bound ends the
    search: priorities, colours, public orders, splitting where asked for, the solver. Where tasks
    are due, the one that is latest counts before the makespan.
    """
    if effort.split and splitting.can_split(tasks) and len(tasks):
        return _split(tasks)
    bound = unsplit_bound(tasks)
    best, method = _heuristic(tasks, units, bound)
    least = bound.whole_ticks
    if _is_done(tasks, best, least):
        return HostSchedule(best, method, "optimal", "bound", bound, Fraction(least))
    if _solver_can(tasks, effort):
        found = exact.solve(tasks, least, best, effort.time_limit_s)
        if found is not None and found.is_optimal:
            # Of both numbers, lateness and makespan, where tasks are due.
            lower = makespan_of(found.pieces)
            return HostSchedule(found.pieces, "cp-sat", "optimal", "solver", bound, lower)
        if found is not None:
            best, method = _better(tasks, best, method, found.pieces, "cp-sat")
            least = max(least, found.lower_bound)
    return HostSchedule(best, method, "feasible", "none", bound, Fraction(least))


def wants_solver(schedule: HostSchedule, effort: Effort) -> bool:
    """Whether a solver that is not installed might have found a better schedule or a proof."""
    # A solver that is not wanted is not missed.
    is_open = schedule.status != "optimal" and effort.time_limit_s > 0
    return is_open and not exact.is_installed()


def _solver_can(tasks: HostTasks, effort: Effort) -> bool:
    """Whether the solver is there, wanted, and fit for these tasks."""
    # Building a model of thousands of intervals takes longer than
    # a good schedule by priorities.
    is_small = len(tasks) <= MOST_TASKS_OF_SOLVER
    return is_small and effort.time_limit_s > 0 and exact.is_installed() and exact.fits(tasks)


def _split(tasks: HostTasks) -> HostSchedule:
    """The schedule of tasks that may be split; it proves itself."""
    # No task has to fit into one piece:
    # the longest one binds nothing.
    bound = fluid_bound(tasks)
    pieces = splitting.split_schedule(tasks)
    is_reached = makespan_of(pieces) == bound.ticks
    status, proof = ("optimal", "bound") if is_reached else ("feasible", "none")
    return HostSchedule(pieces, "split", status, proof, bound, bound.ticks)


def _heuristic(tasks: HostTasks, units: UnitTasks, bound: Bound) -> tuple[tuple[Piece, ...], str]:
    """The best of the heuristics, which ends where one meets the bound."""
    least = bound.whole_ticks
    best: tuple[Piece, ...] = ()
    method = "nothing"
    if not len(tasks):
        return best, method
    if colouring.is_colourable(tasks):
        best, method = colouring.coloured(tasks), "colours"
    rounds = _ROUNDS if len(tasks) <= _MOST_TASKS_OF_ORDERS else 2
    for order in list_orders(tasks, rounds):
        if best and _is_done(tasks, best, least):
            return best, method
        best, method = _better(tasks, best, method, in_order(tasks, order), "priorities")
    if len(tasks) > _MOST_TASKS_OF_ORDERS:
        return best, method
    for name, make in all_orders(tasks, units).items():
        if _is_done(tasks, best, least):
            break
        best, method = _better(tasks, best, method, in_order(tasks, make()), name)
    return best, method


def _is_done(tasks: HostTasks, pieces: Sequence[Piece], least: int) -> bool:
    """Whether nothing can be better: the bound is met, and all are on time."""
    if makespan_of(pieces) > least:
        return False
    return not lateness(tasks, pieces)


def _better(
    tasks: HostTasks,
    best: Sequence[Piece],
    method: str,
    other: Sequence[Piece],
    other_method: str,
) -> tuple[tuple[Piece, ...], str]:
    """The less late, then the shorter of two schedules, the first of equals."""
    # Methods come in order of simplicity, and the same input must give the same schedule.
    mine = lateness(tasks, best), makespan_of(best)
    others = lateness(tasks, other), makespan_of(other)
    if best and mine <= others:
        return tuple(best), method
    return tuple(other), other_method
