"""Streams on real topologies beside the bound of their links, and beside chains of hosts.

`python benchmarks/reshard/topologies.py` prints, for a tensor of 256 MiB, the bound, the simulated
time of streams and of the schedule by cards of hosts (chains in 64 chunks) as parts of it, and what
planning took. Hosts with several cards, oversubscribed fabrics, links of other rates.
"""

from __future__ import annotations

import sys
import time

from collhub_reshard import ReshardPlan, parse_move, plan_reshard
from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling.strategies import Strategy

import hub_core
from hub_core import Algorithm, Topology

TENSOR = "8192x16384:bfloat16"
ROWS_TO_COLUMNS = ("mesh(2,4)@0-7: S0 R", "mesh(2,4)@8-15: R S0")
# topology, source, destination, devices of a host
CASES = (
    ("dgx-h100:2", *ROWS_TO_COLUMNS, 8),
    ("dgx-a100:2", *ROWS_TO_COLUMNS, 8),
    ("dgx-a100:2", "mesh(2,4)@0-7: S0 R", "mesh(2,4)@8-15: R R", 8),
    ("dgx-h100:4", "mesh(2,8)@0-15: S0 S1", "mesh(2,8)@16-31: S1 S0", 8),
    ("leaf-spine:4,8,2", "mesh(2,8)@0-15: S0 R", "mesh(2,8)@16-31: S1 S0", 8),
    ("leaf-spine:4,4,1", "mesh(2,4)@0-7: S01 R", "mesh(2,4)@8-15: R S0", 4),
    ("leaf-spine:8,8,4", *ROWS_TO_COLUMNS, 8),
    ("fat-tree:4", *ROWS_TO_COLUMNS, 4),
)


def simulated_s(algorithm: Algorithm, topology: Topology) -> float | None:
    """Seconds by the default simulator."""
    result = hub_core.simulate(algorithm, topology, algorithm.collective_bytes or 1)
    return None if result.time_ns is None else result.time_ns / 1e9


def planned(
    case: tuple[str, str, str, int], strategy: Strategy | None
) -> tuple[ReshardPlan, float]:
    """A case in streams, or by a strategy; and its simulated seconds."""
    name, source, destination, size = case
    topology = hub_core.read_topology(name)
    move = parse_move(TENSOR, source, destination, host_size=size)
    choices = ReshardChoices(strategy, None if strategy is None else 64)
    plan = plan_reshard([move], topology=topology, choices=choices, simulate=simulated_s)
    seconds = plan.simulated_s
    if seconds is None:
        seconds = simulated_s(plan.lower().algorithm, topology)
    assert seconds is not None
    return plan, seconds


def main() -> int:
    """Print the table."""
    print("topology           links bind  bound ms  status    streams  chunks  by cards  plan s")
    for case in CASES:
        started = time.perf_counter()
        plan, seconds = planned(case, None)
        spent = time.perf_counter() - started
        _, chains = planned(case, Strategy.BROADCAST)
        bound = plan.bound_s
        row = f"{case[0]:18} {len(plan.outcome.weights):10}  {1e3 * bound:8.4f}"
        row += f"  {plan.outcome.status:8}  {seconds / bound:7.4f}"
        row += f"  {max(plan.chunks.values()):6}  {chains / bound:8.4f}  {spent:6.2f}"
        print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
