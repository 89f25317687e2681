"""Random pairs of specs: proved optima, public orders, splitting, simulation, and many tasks.

`python benchmarks/reshard/random_pairs.py [PAIRS]` draws 200 pairs of specs on 2 to 16 hosts, then
1000 unit tasks of several tensors; a quarter of the pairs is simulated.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import numpy as np
from collhub_reshard import Move, parse_move, plan_reshard, unit_tasks
from collhub_reshard.planning import ReshardChoices
from collhub_reshard.scheduling import public_orders
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.host_tasks import HostTasks, build_host_tasks, build_ideal_network
from collhub_shardings import UnitTasks

import hub_core

SEED = 15
MANY_TASKS = 1000


def random_spec(rng: random.Random, rank: int) -> str:
    """Every axis of a two-dimensional mesh splits a dimension, or replicates."""
    words = [""] * rank
    for axis in rng.sample("01", 2):
        if rng.random() < 0.7:
            words[rng.randrange(rank)] += axis
    return " ".join(f"S{word}" if word else "R" for word in words)


def random_move(rng: random.Random, hosts: tuple[int, int] | None = None) -> Move:
    """A ragged tensor between meshes with 2 to 16 hosts together."""
    total = rng.randint(2, 16)
    first = rng.randint(1, total - 1)
    sides = hosts or (first, total - first)
    shape = "x".join(str(rng.randint(64, 512)) for _ in range(3))
    meshes = [f"mesh({count},{rng.choice((1, 2, 4))})" for count in sides]
    texts = [f"{mesh}: {random_spec(rng, 3)}" for mesh in meshes]
    return parse_move(f"{shape}:float32", *texts)


def place_on_hosts(moves: list[Move]) -> tuple[UnitTasks, HostTasks]:
    """The tasks of moves on equal cards."""
    units = unit_tasks(moves)
    network = build_ideal_network(np.unique(units.host_of).tolist(), 1e9)
    return units, build_host_tasks(units, moves, network)


def pairs(count: int) -> bool:
    """Random pairs; whether none is worse than a public order and every split reaches its bound."""
    rng = random.Random(SEED)
    methods: Counter[tuple[str, str]] = Counter()
    gaps, longest, worse, gained = [], 0.0, 0, []
    unsplit = 0
    for _ in range(count):
        units, tasks = place_on_hosts([random_move(rng)])
        started = time.process_time()
        best = find_best_schedule(tasks, units, Effort())
        longest = max(longest, time.process_time() - started)
        methods[best.status, best.proof] += 1
        gaps.append(best.gap)
        orders = public_orders.list_public_orders(tasks, units).values()
        public = min(public_orders.compute_order_time(tasks, make()) for make in orders)
        worse += best.makespan > public
        if best.makespan:
            gained.append(float(public / best.makespan))
        split = find_best_schedule(tasks, units, Effort(split=True))
        unsplit += split.makespan > split.bound.ticks * 101 / 100
    print(f"{count} pairs: " + ", ".join(f"{n} {s} by {p}" for (s, p), n in methods.items()))
    print(f"largest gap {100 * max(gaps):.2f} %, longest search {longest:.1f} CPU s")
    best_gain = max(gained)
    print(f"worse than a public order: {worse}; best public order up to {best_gain:.3f} times ours")
    print(f"split schedules above the fluid bound by 1 %: {unsplit}")
    return not worse and not unsplit


def simulated(count: int) -> bool:
    """Random pairs in 64 chunks on the simulator; whether all are within 5 % of the prediction."""
    rng = random.Random(SEED)
    ratios = []
    for _ in range(count):
        choices = ReshardChoices(chunks=64, effort=Effort(work=0))
        plan = plan_reshard([random_move(rng)], host_bandwidth=1e9, choices=choices)
        made = plan.lower()
        size = made.algorithm.collective_bytes
        assert size is not None
        result = hub_core.simulate(made.algorithm, plan.topology, size)
        assert result.time_ns is not None
        if plan.predicted_s:
            ratios.append(result.time_ns / 1e9 / plan.predicted_s)
    close = sum(ratio <= 1.02 for ratio in ratios)
    print(
        f"{count} pairs simulated: {close} of {len(ratios)} within 2 % of the prediction, ", end=""
    )
    print(f"all between {min(ratios):.3f} and {max(ratios):.3f} of it")
    return max(ratios) <= 1.05


def many() -> bool:
    """At least 1000 unit tasks of several tensors between the same meshes."""
    rng = random.Random(SEED)
    moves: list[Move] = []
    while not moves or len(unit_tasks(moves)) < MANY_TASKS:
        shape = "x".join(str(rng.randint(64, 512)) for _ in range(3))
        texts = [f"{mesh}: {random_spec(rng, 3)}" for mesh in ("mesh(6,4)", "mesh(8,4)")]
        moves.append(parse_move(f"{shape}:float32", *texts))
    units, tasks = place_on_hosts(moves)
    started = time.process_time()
    best = find_best_schedule(tasks, units, Effort())
    seconds = time.process_time() - started
    shown = f"{best.status} by {best.method}, gap {100 * best.gap:.3f} %"
    print(f"{len(units)} unit tasks of {len(moves)} tensors: {shown}, {seconds:.1f} CPU s")
    return seconds <= 30


def main() -> int:
    """Print all three."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    right = [pairs(count), simulated(count // 4), many()]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
