"""The optimum by constraint programming: OR-tools' CP-SAT on whole ticks.

Optional intervals of tasks on the cards of hosts (section 4.2 of the model of "On Optimizing the
Communication of Model Parallelism", MLSys 2023), with the analytic bound as a cut, the load of
every sender below the makespan, and equal tasks in order.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Piece
from hub_core.model import Diagnostic, Severity

# The solver counts in int64, and sums of times must fit too.
_LONGEST = 1 << 48
_LONGEST_WITH_DUE = 1 << 28
_SEED = 1
# Limit of CP-SAT's own measure of work, which is about a second of one core.
_DETERMINISTIC_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Solved:
    """A schedule of the solver; `lower_bound` in ticks, `is_optimal` where it is reached."""

    pieces: tuple[Piece, ...]
    lower_bound: int
    is_optimal: bool


def is_installed() -> bool:
    """Whether OR-tools is there."""
    return importlib.util.find_spec("ortools") is not None


def count_workers() -> int:
    """Threads of the solver: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report_missing_solver() -> Diagnostic:
    """A warning that says how to get OR-tools."""
    return Diagnostic(
        "no-solver",
        "OR-tools is not installed: the schedule is by heuristics, optimal only where its bound"
        " proves it",
        Severity.WARNING,
        cure="python -m pip install 'collhub-reshard[exact]'",
    )


def fits_solver(tasks: HostTasks) -> bool:
    """Whether the times of all tasks are small enough for the solver.

    Lateness comes before the makespan in one number, which is the square of a time.
    """
    longest = _LONGEST if all(due is None for due in tasks.due) else _LONGEST_WITH_DUE
    # One after another is the longest that any schedule takes,
    # but for waiting for the last release.
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


def solve(
    tasks: HostTasks,
    least: int,
    hint: Sequence[Piece],
    work: float,
    time_limit_s: float | None = None,
) -> Solved | None:
    """Search for the best schedule within a limit of work, starting from the schedule `hint`.

    `least`: a bound of the makespan in ticks. `work`: 1 for ten deterministic seconds of CP-SAT.
    The search strategies are interleaved in fixed batches, so that the result depends neither on
    the number of cores nor on the time that the work takes, unless `time_limit_s` stops it.
    Returns None if there is no schedule within these limits.
    """
    # Imported here: it takes a second, and is an extra.
    from ortools.sat.python import cp_model

    built = _build_model(cp_model, tasks, least, _limit_makespan(tasks, hint))
    for piece in hint:
        built.model.add_hint(built.starts[piece.task], int(piece.start))
        for at, sender in enumerate(tasks.senders[piece.task]):
            built.model.add_hint(built.presences[piece.task][at], sender == piece.sender)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = _DETERMINISTIC_SECONDS * work
    if time_limit_s is not None:
        # 0 would mean no limit of time at all.
        solver.parameters.max_time_in_seconds = max(time_limit_s, 1e-3)
    solver.parameters.interleave_search = True
    solver.parameters.num_workers = count_workers()
    solver.parameters.random_seed = _SEED
    status = solver.solve(built.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    pieces = _pieces(tasks, solver, built)
    is_optimal = status == cp_model.OPTIMAL
    if any(due is not None for due in tasks.due):
        # The bound is of both numbers together.
        return Solved(pieces, least, is_optimal)
    return Solved(pieces, int(solver.best_objective_bound), is_optimal)


def _limit_makespan(tasks: HostTasks, hint: Sequence[Piece]) -> int:
    """A time after which nothing needs to run."""
    if all(due is None for due in tasks.due):
        return int(max(piece.end for piece in hint))
    # To be on time may take longer in all than the hint.
    return sum(max(row) for row in tasks.durations) + max(tasks.release)


def _build_model(cp_model: Any, tasks: HostTasks, least: int, most: int) -> _Model:
    model = cp_model.CpModel()
    built = _Model(model, model.new_int_var(least, max(least, most), "makespan"))
    for task in range(len(tasks)):
        _add_task(built, tasks, task, most)
    for intervals in built.on_card.values():
        if tasks.cards == 1:
            model.add_no_overlap(intervals)
        else:
            model.add_cumulative(intervals, [1] * len(intervals), tasks.cards)
    # Without this cut hard cases of some tens of tasks stay unproven.
    for terms in built.loads.values():
        model.add(sum(terms) <= built.makespan * tasks.cards)
    _order_equal_tasks(built, tasks)
    late = _add_lateness(built, tasks, most)
    model.minimize(late * (max(least, most) + 1) + built.makespan)
    return built


def _add_lateness(built: _Model, tasks: HostTasks, most: int) -> Any:
    """How late the latest task is; 0 where nothing is due."""
    dues = [(task, due) for task, due in enumerate(tasks.due) if due is not None]
    if not dues:
        return 0
    late = built.model.new_int_var(0, most, "lateness")
    for task, due in dues:
        lengths = zip(built.presences[task], tasks.durations[task], strict=True)
        # One presence is 1: the sum is the length from the chosen sender.
        length = sum(presence * ticks for presence, ticks in lengths)
        built.model.add(built.starts[task] + length - due <= late)
    return late


def _add_task(built: _Model, tasks: HostTasks, task: int, most: int) -> None:
    """The start of a task, one sender of several, and its intervals on cards."""
    model = built.model
    start = model.new_int_var(tasks.release[task], most, f"start{task}")
    presences = []
    ticks = tasks.durations[task]
    for sender, length in zip(tasks.senders[task], ticks, strict=True):
        presence = model.new_bool_var(f"sends{task}from{sender}")
        interval = model.new_optional_fixed_size_interval_var(start, length, presence, "")
        built.on_card.setdefault(("out", sender), []).append(interval)
        built.loads.setdefault(sender, []).append(length * presence)
        model.add(built.makespan >= start + length).only_enforce_if(presence)
        presences.append(presence)
        # Where lengths differ between senders, so do the times on the receivers' cards.
        for host in tasks.receivers[task] if len(set(ticks)) > 1 else ():
            built.on_card.setdefault(("in", host), []).append(interval)
    model.add_exactly_one(presences)
    if len(set(ticks)) == 1:
        interval = model.new_fixed_size_interval_var(start, ticks[0], "")
        for host in tasks.receivers[task]:
            built.on_card.setdefault(("in", host), []).append(interval)
    built.starts.append(start)
    built.presences.append(presences)


def _order_equal_tasks(built: _Model, tasks: HostTasks) -> None:
    """Tasks that nothing tells apart start in order."""
    before: dict[object, int] = {}
    for task in range(len(tasks)):
        key = (
            tasks.senders[task],
            tasks.receivers[task],
            tasks.durations[task],
            tasks.release[task],
            tasks.due[task],
        )
        # One of all orders of equal tasks is enough.
        if key in before:
            built.model.add(built.starts[before[key]] <= built.starts[task])
        before[key] = task


def _pieces(tasks: HostTasks, solver: Any, built: _Model) -> tuple[Piece, ...]:
    pieces = []
    for task, start in enumerate(built.starts):
        chosen = [solver.boolean_value(presence) for presence in built.presences[task]]
        sender = tasks.senders[task][chosen.index(True)]
        ticks = tasks.duration(task, sender)
        pieces.append(Piece(task, sender, Fraction(solver.value(start)), Fraction(ticks)))
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task)))
