"""The golden tables of the n-to-m suite of Alpa (benchmark/alpa/resharding/suite.py, b8078a9f).

Values computed by two independent programs for 1.25 GiB/s a host and direction.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_reshard import parse_move, unit_tasks
from collhub_reshard.scheduling import public_orders
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.host_tasks import HostTasks, build_host_tasks, build_ideal_network
from collhub_reshard.scheduling.public_orders import compute_send_receive_s
from collhub_reshard.scheduling.schedule import compute_receiver_bound, share_among_senders
from collhub_shardings import UnitTasks

MIB = 1 << 20
BANDWIDTH = 1280 * MIB
CASES = {
    1: ("1024x1024x512", "mesh(2,4): S0 R R", "mesh(2,4): S0 R R"),
    2: ("1024x1024x512", "mesh(2,4): R R R", "mesh(2,4): S0 R R"),
    3: ("1024x1024x512", "mesh(2,4): R S0 R", "mesh(2,4): S0 R R"),
    4: ("1024x1024x512", "mesh(2,4): R S01 R", "mesh(2,4): S01 R R"),
    5: ("1024x1024x512", "mesh(2,4): S1 R R", "mesh(2,4): S0 R R"),
    6: ("3072x1024x170", "mesh(2,4): S0 R R", "mesh(3,4): S0 R R"),
    7: ("1024x1024x512", "mesh(1,4): S1 R R", "mesh(2,4): R R R"),
    9: ("1024x1024x512", "mesh(2,4): R S0 R", "mesh(2,4): R R S0"),
}
# Send/recv, local all-gather, broadcast naive, size-balanced, greedy, optimum.
COLUMNS = {
    1: (3.2000, 0.8000, 0.8000, 0.8000, 0.8000, 0.8000),
    2: (3.2000, 0.8000, 1.6000, 0.8000, 0.8000, 0.8000),
    3: (3.2000, 0.8000, 1.2000, 1.2000, 0.8000, 0.8000),
    4: (0.8000, 0.8000, 1.5000, 1.5000, 0.8000, 0.8000),
    5: (3.2000, 0.8000, 1.6000, 1.2000, 0.8000, 0.8000),
    6: (3.1875, 0.7969, 1.5938, 1.5938, 1.0625, 0.7969),
    7: (12.800, 12.800, 1.6000, 1.6000, 1.6000, 1.6000),
    9: (3.2000, 0.8000, 1.2000, 1.2000, 0.8000, 0.8000),
}
# MiB: (senders, receivers) of every unit task, with hosts of the destination from 0; L_in; L_out.
FOUR = [(512, (0,), (0,)), (512, (1,), (0,)), (512, (0,), (1,)), (512, (1,), (1,))]
UNITS = {
    1: ([(1024, (0,), (0,)), (1024, (1,), (1,))], 1024, 1024),
    2: ([(1024, (0, 1), (0,)), (1024, (0, 1), (1,))], 1024, 1024),
    3: (FOUR, 1024, 1024),
    4: (sorted([(32, (s,), (r,)) for s in (0, 1) for r in (0, 1)] * 16), 1024, 1024),
    5: ([(512, (0, 1), (0,))] * 2 + [(512, (0, 1), (1,))] * 2, 1024, 1024),
    6: (
        [(680, (0,), (0,)), (340, (0,), (1,)), (340, (1,), (1,)), (680, (1,), (2,))],
        680,
        1020,
    ),
    7: ([(512, (0,), (0, 1))] * 4, 2048, 2048),
    9: (FOUR, 1024, 1024),
}


def problem(case: int) -> tuple[UnitTasks, HostTasks]:
    move = parse_move(CASES[case][0] + ":float32", *CASES[case][1:])
    units = unit_tasks([move])
    network = build_ideal_network(set(units.host_of.tolist()), BANDWIDTH)
    return units, build_host_tasks(units, [move], network)


@pytest.mark.parametrize("case", CASES)
def test_unit_tasks_and_bounds_are_those_of_the_suite(case: int) -> None:
    _, tasks = problem(case)
    expected, most_in, most_out = UNITS[case]
    first = min(host for hosts in tasks.receivers for host in hosts)
    found = [
        (tasks.bytes[task] // MIB, tasks.senders[task], tuple(h - first for h in hosts))
        for task, hosts in enumerate(tasks.receivers)
    ]
    assert sorted(found) == sorted(expected)
    assert tasks.seconds(compute_receiver_bound(tasks).ticks) * BANDWIDTH / MIB == most_in
    assert share_among_senders(tasks, range(len(tasks))).time_s * BANDWIDTH / MIB == most_out


@pytest.mark.parametrize("case", CASES)
def test_all_columns_agree_to_four_decimals(case: int) -> None:
    units, tasks = problem(case)
    orders = [public_orders.order_naively(tasks), public_orders.order_by_size(tasks)]
    times = [public_orders.compute_order_time(tasks, order) * tasks.tick_s for order in orders]
    gathered = compute_send_receive_s(units, tasks.network, gathers=True)
    best = find_best_schedule(tasks, units, Effort())
    found = [compute_send_receive_s(units, tasks.network), gathered, *times]
    expected = COLUMNS[case]
    assert [round(float(time), 4) for time in found] == list(expected[:4])
    assert round(tasks.seconds(best.makespan), 4) == expected[5]
    assert best.status == "optimal"


@pytest.mark.parametrize("case", CASES)
def test_greedy_gives_its_column_from_every_seed(case: int) -> None:
    _, tasks = problem(case)
    orders = [public_orders.order_greedily(tasks, seed) for seed in range(5)]
    times = {
        round(tasks.seconds(public_orders.compute_order_time(tasks, order)), 4) for order in orders
    }
    assert times == {COLUMNS[case][4]}


def test_greedy_with_the_loads_of_the_public_class_finds_both_times_of_case_6() -> None:
    units, tasks = problem(6)
    sizes = [int(units.source_bytes[row]) for row in tasks.rows]
    orders = [public_orders.order_greedily(tasks, seed, sizes, idle_hosts=3) for seed in range(40)]
    times = [
        round(tasks.seconds(public_orders.compute_order_time(tasks, order)), 4) for order in orders
    ]
    assert set(times) == {0.7969, 1.0625}
    # 75 of 100 seeds of the public class find the optimum.
    assert times.count(0.7969) > times.count(1.0625)


@pytest.mark.parametrize("case", CASES)
def test_split_schedules_reach_the_fluid_bound(case: int) -> None:
    units, tasks = problem(case)
    split = find_best_schedule(tasks, units, Effort(split=True))
    assert split.makespan == split.bound.ticks


def test_the_benchmark_has_the_same_table() -> None:
    file = Path(__file__).resolve().parents[4] / "benchmarks" / "reshard" / "suite.py"
    if not file.is_file():
        pytest.skip("only in a checkout")
    text = file.read_text()
    for shape, source, destination in CASES.values():
        assert f'("{shape}", "{source}", "{destination}")' in text
