"""Schedules: no card twice at a time, never below a bound, never worse than public orders."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from collhub_reshard import parse_move
from collhub_reshard.scheduling import best as best_module
from collhub_reshard.scheduling import public_orders, special_cases
from collhub_reshard.scheduling.best import Effort, could_use_solver, find_best_schedule
from collhub_reshard.scheduling.public_orders import compute_first_fit_s
from collhub_reshard.scheduling.schedule import (
    compute_fluid_bound,
    compute_lateness,
    find_least_sharing,
    schedule_in_order,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_tasks import between_hosts, check_pieces, moves

from hub_core.plugin_api import SearchBudget

HEURISTICS = Effort(work=0)
needs_solver = pytest.mark.skipif(
    not best_module.is_solver_installed(),
    reason="OR-tools is not installed: python -m pip install ortools",
)


@pytest.mark.once
@given(moves(), st.integers(1, 2))
@settings(max_examples=60)
def test_schedules_are_possible_and_beat_every_public_order(move, cards: int) -> None:
    units, tasks = between_hosts([move], cards)
    found = find_best_schedule(tasks, units, HEURISTICS)
    check_pieces(tasks, found.pieces)
    assert found.makespan >= found.bound.ticks
    for name, make in public_orders.list_public_orders(tasks, units).items():
        assert found.makespan <= public_orders.compute_order_time(tasks, make()), name


@given(moves())
@settings(max_examples=60)
def test_split_tasks_take_the_fluid_bound(move) -> None:
    units, tasks = between_hosts([move])
    found = find_best_schedule(tasks, units, Effort(split=True))
    check_pieces(tasks, found.pieces)
    assert found.makespan == compute_fluid_bound(tasks).ticks


@needs_solver
@given(moves())
@settings(max_examples=15)
def test_solver_and_heuristics_agree_where_both_prove(move) -> None:
    units, tasks = between_hosts([move])
    if not len(tasks):
        return
    found = find_best_schedule(tasks, units, HEURISTICS)
    solved = best_module.solve_exactly(tasks, 0, found.pieces, 0.5)
    assert solved is not None
    check_pieces(tasks, solved.pieces)
    assert solved.lower_bound <= found.makespan
    if found.status == "optimal" and solved.is_optimal:
        assert max(piece.end for piece in solved.pieces) == found.makespan


def test_at_a_limit_the_best_schedule_so_far_is_returned() -> None:
    move = parse_move("35x33:float32", "mesh(5,2): S0 S1", "mesh(7,2): S1 S0")
    units, tasks = between_hosts([move])
    heuristic = find_best_schedule(tasks, units, HEURISTICS)
    assert heuristic.status != "optimal"
    budget = SearchBudget(timeout_s=1e-9)
    found = find_best_schedule(tasks, units, Effort(budget=budget))
    assert found.pieces == heuristic.pieces
    (cut,) = budget.cuts
    assert cut.not_tried == "senders, annealing, CP-SAT"


def test_without_solver_the_schedule_is_unproven_and_the_cure_is_said(monkeypatch) -> None:
    monkeypatch.setattr(best_module, "is_solver_installed", lambda: False)
    move = parse_move("7x11:float32", "mesh(3,1): S0 R", "mesh(4,1): R S0")
    units, tasks = between_hosts([move])
    unproven = replace(find_best_schedule(tasks, units, Effort()), status="feasible", proof="none")
    assert could_use_solver(tasks, unproven, Effort())
    assert "pip install" in str(best_module.report_missing_solver())


def test_no_solver_is_recommended_where_none_would_be_used(monkeypatch) -> None:
    monkeypatch.setattr(best_module, "is_solver_installed", lambda: False)
    move = parse_move("7x11:float32", "mesh(3,1): S0 R", "mesh(4,1): R S0")
    units, tasks = between_hosts([move])
    unproven = replace(find_best_schedule(tasks, units, Effort()), status="feasible", proof="none")
    assert not could_use_solver(tasks, unproven, HEURISTICS)
    assert not could_use_solver(tasks, replace(unproven, method="split"), Effort())
    assert not could_use_solver(tasks, unproven, Effort(budget=SearchBudget(timeout_s=1e-9)))
    monkeypatch.setattr(best_module, "MAX_TASKS_OF_SOLVER", 0)
    assert not could_use_solver(tasks, unproven, Effort())


def test_more_tasks_than_the_solver_takes_get_heuristics(monkeypatch) -> None:
    monkeypatch.setattr(best_module, "MAX_TASKS_OF_SOLVER", 0)
    move = parse_move("31x29:float32", "mesh(3,2): S0 R", "mesh(4,2): R S01")
    units, tasks = between_hosts([move])
    assert find_best_schedule(tasks, units, Effort()).method != "cp-sat"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_edges_get_as_many_colours_as_the_largest_degree(edges) -> None:
    colours = special_cases.colour_edges(edges)
    ends = [[("out", a), ("in", b)] for a, b in edges]
    used = [(end, colour) for pair, colour in zip(ends, colours, strict=True) for end in pair]
    assert len(set(used)) == len(used)
    degrees = [sum(end in pair for pair in ends) for end in {e for pair in ends for e in pair}]
    assert max(colours) + 1 == max(degrees)


def test_equal_tasks_are_coloured_to_the_optimum() -> None:
    move = parse_move("24x24:float32", "mesh(3,2): S01 R", "mesh(4,1): R S0")
    units, tasks = between_hosts([move])
    assert special_cases.is_colourable(tasks)
    found = find_best_schedule(tasks, units, HEURISTICS)
    assert (found.method, found.status) == ("colours", "optimal")


def test_a_hall_set_binds_the_sharing() -> None:
    rate = {host: Fraction(1) for host in range(3)}
    demand = {(0,): 10, (0, 1): 4, (1,): 6, (2,): 1, (1, 2): 3}
    found = find_least_sharing(demand, rate)
    # Hosts 0 and 1 alone can send 20 of the bytes.
    assert (found.time_s, found.hosts) == (10, (0, 1))
    loads = {host: sum(v for (_, h), v in found.shares.items() if h == host) for host in rate}
    assert max(loads.values()) == 10
    assert sum(loads.values()) == sum(demand.values())


def test_tasks_wait_for_their_release_and_late_ones_are_named() -> None:
    first = parse_move("8x8:float32", "mesh(1,1): R R", "mesh(1,1): R R", release_s=1e-6)
    due = parse_move("8x8:float32", "mesh(1,1): R R", "mesh(1,1): R R", due_s=1e-7)
    units, tasks = between_hosts([first, due])
    found = find_best_schedule(tasks, units, HEURISTICS)
    check_pieces(tasks, found.pieces)
    assert min(piece.start for piece in found.pieces if piece.task == 0) * tasks.tick_s >= 1e-6
    assert found.late_tasks(tasks) == (1,)


def test_two_cards_halve_the_time_of_equal_tasks() -> None:
    move = parse_move("64x8:float32", "mesh(1,4): S1 R", "mesh(1,4): S1 R")
    times = []
    for cards in (1, 2):
        units, tasks = between_hosts([move], cards)
        times.append(tasks.seconds(find_best_schedule(tasks, units, HEURISTICS).makespan))
    assert times[0] == 2 * times[1]


def test_rounds_of_first_fit_are_never_faster_than_the_bound() -> None:
    move = parse_move("3072x170:float32", "mesh(2,4): S0 R", "mesh(3,4): S0 R")
    units, tasks = between_hosts([move])
    bound = compute_fluid_bound(tasks).ticks * tasks.tick_s
    # Four devices of a host take the same box, one message each.
    assert compute_first_fit_s(units, tasks.network) >= 3 * bound


def test_an_order_starts_tasks_when_their_cards_are_free() -> None:
    move = parse_move("8x8:float32", "mesh(2,1): S0 R", "mesh(1,1): R R")
    _, tasks = between_hosts([move])
    pieces = schedule_in_order(tasks, [(0, 0), (1, 1)])
    assert [(piece.start, piece.duration) for piece in pieces] == [(0, 1), (1, 1)]


@needs_solver
def test_what_is_due_first_goes_first_even_where_that_takes_longer() -> None:
    # Host 0 has both boxes; that of host 2 is due as soon as it can be there.
    sides = ("mesh(1,1)@0: R", "mesh(1,1)@1: R"), ("mesh(1,1)@0: R", "mesh(1,1)@2: R")
    long = parse_move("100:int8", *sides[0], name="long")
    due = parse_move("10:int8", *sides[1], name="due", due_s=1e-8)
    units, tasks = between_hosts([long, due])
    for effort in (HEURISTICS, Effort()):
        found = find_best_schedule(tasks, units, effort)
        assert found.late_tasks(tasks) == ()
        assert [piece.task for piece in found.pieces] == [1, 0]


@needs_solver
def test_the_solver_finds_an_order_that_keeps_all_dates() -> None:
    dates = [4e-8, 1e-8, 3e-8, 2e-8]
    found = [
        parse_move("10:int8", "mesh(1,1)@0: R", f"mesh(1,1)@{1 + at}: R", due_s=due)
        for at, due in enumerate(dates)
    ]
    _, tasks = between_hosts(found)
    naive = schedule_in_order(tasks, public_orders.order_naively(tasks))
    solved = best_module.solve_exactly(tasks, 0, naive, 0.5)
    assert solved is not None
    assert solved.is_optimal
    assert compute_lateness(tasks, naive) > 0 == compute_lateness(tasks, solved.pieces)
