"""Streams on real topologies beside the bound of their links, and beside chains of hosts.

`python benchmarks/reshard/topologies.py [PAIRS]` prints, for a tensor of 256 MiB, the bound, the
simulated time of streams and of the schedule by cards of hosts (chains in 64 chunks) as parts of
it, and what planning took: hosts with several cards, oversubscribed fabrics. Then PAIRS random
pairs of specs (48 by default): how many are proved optimal, and how near simulated ones come.
"""

from __future__ import annotations

import random
import sys
import time

from collhub_reshard import ReshardPlan, parse_move, plan_reshard
from collhub_reshard.planning import ReshardChoices
from collhub_reshard.strategies import Strategy

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


# topology, devices of a host, devices of a mesh
NETWORKS = (
    ("dgx-h100:4", 8, 16),
    ("dgx-a100:2", 8, 8),
    ("leaf-spine:4,8,2", 8, 16),
    ("leaf-spine:4,4,1", 4, 8),
    ("ring:16", 4, 8),
    ("mesh:4x4", 4, 8),
    ("switch:16", 4, 8),
    ("dgx1v", 4, 4),
)


def random_side(rng: random.Random, count: int, first: int) -> str:
    """A mesh of some devices, each axis of which splits a dimension or replicates."""
    rows = rng.choice([1, 2, 4])
    words = ["", ""]
    for axis in "01":
        place = rng.randint(-1, 1)
        if place >= 0:
            words[place] += axis
    spec = " ".join(f"S{word}" if word else "R" for word in words)
    return f"mesh({rows},{count // rows})@{first}-{first + count - 1}: {spec}"


def print_random(pairs: int) -> None:
    """Random pairs on all networks in turn."""
    rng = random.Random(1)
    ratios = []
    proved = 0
    worst_gap = 0.0
    for number in range(pairs):
        name, size, count = NETWORKS[number % len(NETWORKS)]
        topology = hub_core.read_topology(name)
        sides = random_side(rng, count, 0), random_side(rng, count, count)
        move = parse_move("8192x8192:bfloat16", *sides, host_size=size)
        plan = plan_reshard([move], topology=topology, simulate=simulated_s)
        proved += plan.outcome.status == "optimal"
        worst_gap = max(worst_gap, plan.outcome.gap)
        assert plan.simulated_s is not None
        ratios.append((plan.simulated_s / plan.bound_s, name))
    ratios.sort()
    near = sum(ratio <= 1.03 for ratio, _ in ratios)
    print(f"{pairs} random pairs: {proved} proved optimal, largest gap {worst_gap:.2g}")
    print(f"simulated: {near} at most 3 % above the bound, the median {ratios[pairs // 2][0]:.4f}")
    print(f"worst {ratios[-1][0]:.4f} on {ratios[-1][1]}, least {ratios[0][0]:.4f}")


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
    print_random(int(sys.argv[1]) if len(sys.argv) > 1 else 48)
    return 0


if __name__ == "__main__":
    sys.exit(main())
