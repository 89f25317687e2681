"""The search for whole tasks: exact bounds of small cases, small gaps of large ones, one result."""

from __future__ import annotations

import itertools
import random

import pytest
from collhub_reshard import parse_move
from collhub_reshard.scheduling import best, list_schedules
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.list_schedules import assign_senders, balance_senders
from collhub_reshard.scheduling.schedule import (
    compute_makespan,
    compute_unsplit_bound,
    schedule_in_order,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_tasks import between_hosts, check_pieces, moves, specs

HEURISTICS = Effort(work=0)
SEARCH = Effort(work=0.02)


def brute_force(tasks: HostTasks) -> int:
    """The shortest makespan over all orders and all choices of senders."""
    return min(
        int(compute_makespan(schedule_in_order(tasks, [(task, senders[task]) for task in order])))
        for order in itertools.permutations(range(len(tasks)))
        for senders in itertools.product(*tasks.senders)
    )


@pytest.mark.once
@given(moves(), st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_bounds_and_schedules_enclose_the_optimum_of_small_cases(move, cards: int) -> None:
    _, tasks = between_hosts([move], cards)
    choices = 1
    for senders in tasks.senders:
        choices *= len(senders)
    if not 0 < len(tasks) <= 5 or choices > 64:
        return
    units, tasks = between_hosts([move], cards)
    found = find_best_schedule(tasks, units, SEARCH)
    optimum = brute_force(tasks)
    assert found.lower_bound_ticks <= optimum <= found.makespan
    if found.status == "optimal":
        assert found.makespan == optimum


def test_whole_tasks_need_more_time_than_the_shared_bound() -> None:
    # Three boxes of 10, 10 and 9 rows on two senders: 19 rows, where halves would take 14.5.
    move = parse_move("29x4:float32", "mesh(2,1): R R", "mesh(3,1): S0 R")
    units, tasks = between_hosts([move])
    assignment = assign_senders(tasks)
    assert assignment is not None
    row = min(max(ticks) for ticks in tasks.durations) // 9
    assert (compute_unsplit_bound(tasks).ticks, assignment.lower_bound) == (14.5 * row, 19 * row)
    found = find_best_schedule(tasks, units, SEARCH)
    assert (found.makespan, found.status, found.proof) == (19 * row, "optimal", "solver")


def test_tasks_for_all_hosts_add_to_the_load_of_every_sender() -> None:
    alone = parse_move("6x4:float32", "mesh(2,1)@0-1: R R", "mesh(2,1)@2-3: R R")
    others = parse_move("9x4:float32", "mesh(2,1)@0-1: R R", "mesh(2,1)@2-3: S0 R")
    units, tasks = between_hosts([alone, others])
    assignment = assign_senders(tasks)
    assert assignment is not None
    # 6 rows to both hosts exclude all else; of 5 and 4 rows each sender takes one box.
    rows = assignment.lower_bound * tasks.tick_s / (16 / tasks.network.in_rate[2])
    assert rows == 6 + 5
    assert find_best_schedule(tasks, units, SEARCH).makespan == assignment.lower_bound


@pytest.mark.once
def test_rotations_fill_the_cards_of_fully_loaded_hosts() -> None:
    # 8 x 8 hosts, 256 ragged boxes: priorities leave cards idle, a Latin square does not.
    move = parse_move("118x306x459:float32", "mesh(8,4): S0 S1 R", "mesh(8,2): R R S0")
    units, tasks = between_hosts([move])
    bound = compute_unsplit_bound(tasks).whole_ticks
    assert find_best_schedule(tasks, units, HEURISTICS).makespan > bound
    found = find_best_schedule(tasks, units, SEARCH)
    assert (found.method, found.makespan) == ("rotation", bound)


def test_annealing_reaches_a_bound_that_priorities_miss() -> None:
    rng = random.Random(4)
    improved = 0
    for _ in range(12):
        shape = "x".join(str(rng.randint(20, 90)) for _ in range(3))
        move = parse_move(f"{shape}:float32", "mesh(4,2): S0 R S1", "mesh(5,1): R S0 R")
        units, tasks = between_hosts([move])
        start = find_best_schedule(tasks, units, HEURISTICS)
        order = list_schedules.improve_order(
            tasks, start.pieces, compute_unsplit_bound(tasks).whole_ticks, 2_000_000
        )
        pieces = schedule_in_order(tasks, order)
        check_pieces(tasks, pieces)
        assert compute_makespan(pieces) <= start.makespan
        improved += compute_makespan(pieces) < start.makespan
    assert improved


@given(moves())
@settings(max_examples=20, deadline=None)
def test_annealing_is_deterministic_and_sends_every_task_once(move) -> None:
    units, tasks = between_hosts([move])
    if len(tasks) < 2:
        return
    start = find_best_schedule(tasks, units, HEURISTICS)
    orders = [list_schedules.improve_order(tasks, start.pieces, 0, 20_000) for _ in range(2)]
    assert orders[0] == orders[1]
    check_pieces(tasks, schedule_in_order(tasks, orders[0]))


@given(specs(), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_rotations_are_orders_of_all_tasks(spec: str, sending: int, receiving: int) -> None:
    move = parse_move("13x11:float32", f"mesh({sending},2): {spec}", f"mesh({receiving},2): S0 R")
    _, tasks = between_hosts([move])
    if not len(tasks):
        return
    senders = balance_senders(tasks)
    for order in list_schedules.generate_rotations(tasks, senders):
        assert sorted(order) == list(enumerate(senders))


@pytest.mark.slow
def test_gaps_of_random_pairs_are_at_most_one_percent() -> None:
    rng = random.Random(32)
    for _ in range(80):
        hosts = rng.randint(1, 7), rng.randint(1, 7)
        shape = "x".join(str(rng.randint(64, 512)) for _ in range(2))
        words = [
            f"mesh({count},{rng.choice((1, 2, 4))}): {rng.choice(('S0 R', 'R S1', 'S0 S1', 'R S0'))}"
            for count in hosts
        ]
        units, tasks = between_hosts([parse_move(f"{shape}:float32", *words)])
        assert find_best_schedule(tasks, units, Effort()).gap <= 0.01


@pytest.mark.skipif(not best.is_solver_installed(), reason="OR-tools is not installed")
def test_the_solver_gives_one_result_with_any_number_of_workers(monkeypatch) -> None:
    move = parse_move("31x29:float32", "mesh(3,2): S0 R", "mesh(4,2): R S01")
    units, tasks = between_hosts([move])
    start = find_best_schedule(tasks, units, HEURISTICS)
    results = []
    for cores in (1, 2, 4):
        monkeypatch.setattr(best, "count_workers", lambda cores=cores: cores)
        results.append(best.solve_exactly(tasks, 0, start.pieces, 0.2))
    assert results[0] == results[1] == results[2]
