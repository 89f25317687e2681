"""The n-to-m suite of Alpa beside the values of the specification, simulated and executed.

`python benchmarks/reshard/suite.py` prints seconds of all six columns of all cases at 1.25 GiB/s a
host, then the schedules in 64 chunks on the simulator, beside prediction and bound, then the cases
scaled down on real arrays by executors that are installed.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import numpy as np
from collhub_reshard import Move, parse_move, plan_reshard, unit_tasks
from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling import public_orders
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.host_tasks import HostTasks, build_host_tasks, build_ideal_network
from collhub_reshard.scheduling.public_orders import compute_send_receive_s
from collhub_shardings import UnitTasks

import hub_core
from hub_core.plugin_api import Executor

BANDWIDTH = 1.25 * 2**30
CASES = {
    1: ("1024x1024x512", "mesh(2,4): S0 R R", "mesh(2,4): S0 R R"),
    2: ("1024x1024x512", "mesh(2,4): R R R", "mesh(2,4): S0 R R"),
    3: ("1024x1024x512", "mesh(2,4): R S0 R", "mesh(2,4): S0 R R"),
    4: ("1024x1024x512", "mesh(2,4): R S01 R", "mesh(2,4): S01 R R"),
    5: ("1024x1024x512", "mesh(2,4): S1 R R", "mesh(2,4): S0 R R"),
    6: ("3072x1024x170", "mesh(2,4): S0 R R", "mesh(3,4): S0 R R"),
    7: ("1024x1024x512", "mesh(1,4): S1 R R", "mesh(2,4): R R R"),
    8: ("1024x1024x512", "mesh(1,4): S1 R R", "mesh(2,4): R R R"),
    9: ("1024x1024x512", "mesh(2,4): R S0 R", "mesh(2,4): R R S0"),
}
# Units, send/recv, local all-gather, broadcast naive, size-balanced, greedy, optimum.
GOLDEN = {
    1: (2, 3.2, 0.8, 0.8, 0.8, 0.8, 0.8),
    2: (2, 3.2, 0.8, 1.6, 0.8, 0.8, 0.8),
    3: (4, 3.2, 0.8, 1.2, 1.2, 0.8, 0.8),
    4: (64, 0.8, 0.8, 1.5, 1.5, 0.8, 0.8),
    5: (4, 3.2, 0.8, 1.6, 1.2, 0.8, 0.8),
    6: (4, 3.1875, 0.7969, 1.5938, 1.5938, 1.0625, 0.7969),
    7: (4, 12.8, 12.8, 1.6, 1.6, 1.6, 1.6),
    8: (4, 12.8, 12.8, 1.6, 1.6, 1.6, 1.6),
    9: (4, 3.2, 0.8, 1.2, 1.2, 0.8, 0.8),
}
SEEDS = 20


def problem(case: int) -> tuple[Move, UnitTasks, HostTasks]:
    """A case with its unit tasks, and those between hosts on the ideal network."""
    shape, source, destination = CASES[case]
    move = parse_move(f"{shape}:float32", source, destination)
    units = unit_tasks([move])
    network = build_ideal_network(np.unique(units.host_of).tolist(), BANDWIDTH)
    return move, units, build_host_tasks(units, [move], network)


def columns(case: int) -> tuple[float, ...]:
    """The seven numbers of a case, as `GOLDEN` has them."""
    _, units, tasks = problem(case)
    network = tasks.network
    greedy = [public_orders.order_greedily(tasks, seed) for seed in range(SEEDS)]
    # The column holds for loads of box sizes over the hosts of the source alone.
    worst = max(public_orders.compute_order_time(tasks, order) for order in greedy)
    best = find_best_schedule(tasks, units, Effort())
    assert best.status == "optimal"
    return (
        len(units),
        float(compute_send_receive_s(units, network)),
        float(compute_send_receive_s(units, network, gathers=True)),
        tasks.seconds(public_orders.compute_order_time(tasks, public_orders.order_naively(tasks))),
        tasks.seconds(public_orders.compute_order_time(tasks, public_orders.order_by_size(tasks))),
        tasks.seconds(worst),
        tasks.seconds(best.makespan),
    )


def print_columns() -> bool:
    """Print the golden table; whether every value agrees to 4 decimals."""
    print("case  units  send/recv  local-ag    naive  size-bal   greedy  optimum  agree")
    agrees = True
    for case, stated in GOLDEN.items():
        found = columns(case)
        same = all(round(a, 4) == b for a, b in zip(found, stated, strict=True))
        agrees &= same
        numbers = "  ".join(f"{value:8.4f}" for value in found[1:])
        print(f"{case:4}  {found[0]:5}  {numbers}  {'yes' if same else 'NO'}")
    started = time.perf_counter()
    for case in CASES:
        _, units, tasks = problem(case)
        find_best_schedule(tasks, units, Effort())
    print(f"all optima proved in {time.perf_counter() - started:.3f} s together")
    _, units, tasks = problem(6)
    sizes = [int(units.source_bytes[row]) for row in tasks.rows]
    orders = [public_orders.order_greedily(tasks, seed, sizes, idle_hosts=3) for seed in range(100)]
    times = Counter(
        round(tasks.seconds(public_orders.compute_order_time(tasks, one)), 4) for one in orders
    )
    print(f"case 6, loads as the public class counts them, 100 seeds: {dict(times)}")
    return agrees


def print_simulated() -> bool:
    """The schedules in 64 chunks and 10 us of latency on the simulator."""
    print("case  predicted  simulated  of predicted  of bound  tokens")
    fits = True
    for case in CASES:
        move, _, _ = problem(case)
        plan = plan_reshard(
            [move],
            host_bandwidth=BANDWIDTH,
            latency_s=1e-5,
            choices=ReshardChoices(chunks=64),
        )
        made = plan.lower()
        size = made.algorithm.collective_bytes
        assert size is not None
        result = hub_core.simulate(made.algorithm, plan.topology, size)
        assert result.time_ns is not None
        seconds = result.time_ns / 1e9
        ratios = seconds / plan.predicted_s, seconds / plan.bound_s
        fits &= abs(ratios[0] - 1) <= 0.02 and ratios[1] <= 1.03
        row = f"{case:4}  {plan.predicted_s:9.4f}  {seconds:9.4f}"
        print(f"{row}  {ratios[0]:12.4f}  {ratios[1]:8.4f}  {made.tokens:6}")
    return fits


def print_executed() -> bool:
    """Every case scaled down, byte by byte on executors."""
    known = {found.name for found in hub_core.discover().all(Executor)}
    names = [name for name in ("numpy", "shared-memory", "torch") if name in known]
    is_right = True
    for case, (shape, source, destination) in CASES.items():
        small = "x".join(str(int(length) // 32 or 1) for length in shape.split("x"))
        move = parse_move(f"{small}:float32", source, destination)
        for layout in ("packed", "rows"):
            choices = ReshardChoices(chunks=4, layout=layout)
            made = plan_reshard([move], host_bandwidth=BANDWIDTH, choices=choices).lower()
            assert hub_core.verify(made.algorithm).ok
            done = [name for name in names if _is_exact(made.algorithm, name)]
            is_right &= done == names
            print(f"{case:4}  {layout:6}  verified, byte-exact on {', '.join(done)}")
    return is_right


def _is_exact(algorithm: hub_core.Algorithm, executor: str) -> bool:
    """Whether an executor puts every element where the contract wants it."""
    units = algorithm.collective.input_units().tolist()
    inputs = [
        (np.arange(count, dtype=np.int32) + 1_000_000 * rank) for rank, count in enumerate(units)
    ]
    outputs = hub_core.execute(algorithm, inputs, name=executor).outputs
    expected = algorithm.collective.postcondition()
    assert expected is not None
    wanted = [np.zeros(len(output), np.int32) for output in outputs]
    columns = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
    for rank, offset, source, unit in zip(*columns, strict=True):
        wanted[rank][offset] += inputs[source][unit]
    pairs = zip(outputs, wanted, strict=True)
    return all(np.array_equal(output, want) for output, want in pairs)


def main() -> int:
    """Print all three tables."""
    right = [print_columns(), print_simulated(), print_executed()]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
