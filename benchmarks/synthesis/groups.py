"""Process groups together against one by one, on tori with random groups.

    python benchmarks/synthesis/groups.py [--seeds 3] [--large] [--work 400000]

Prints, per case: simulated time together and one by one, how many times faster, time by the joint
bound, and CPU seconds with and without verification. `--large`: 512 NPUs, 64 groups.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from collhub_flows.groups.planning import GroupChoices, plan_groups
from collhub_flows.groups.shares import GroupWish

from hub_core import parse_topology, verify
from hub_core.model import CollectiveKind

SIZE = 64 << 20
KINDS = ("all-to-all", "all-gather", "reduce-scatter", "all-reduce", "broadcast")


def random_groups(npus: int, kind: str, seed: int) -> list[GroupWish]:
    """Groups of 8 of a random order of all NPUs."""
    order = np.random.default_rng(seed).permutation(npus)
    wished = CollectiveKind(kind)
    return [GroupWish(tuple(part.tolist()), wished, SIZE) for part in np.split(order, npus // 8)]


def row(text: str, kind: str, seed: int, work: int) -> str:
    """The figures of one case."""
    topology = parse_topology(text)
    wishes = random_groups(topology.num_npus, kind, seed)
    start = time.process_time()
    plan = plan_groups(wishes, topology, GroupChoices(work=work))
    made = time.process_time() - start
    # The joint algorithm has the same steps, in an order that its simulation has gone through.
    right = all(verify(algorithm).ok for algorithm in plan.algorithms)
    whole = time.process_time() - start
    return (
        f"| {text} | {kind} | {seed} | {plan.method} | {plan.time.ns / 1000:.1f} | "
        f"{plan.one_by_one.ns / 1000:.1f} | {plan.ratio:.2f} | {plan.ratio_to_bound:.3f} | "
        f"{made:.1f} | {whole:.1f} | {'yes' if right else 'NO'} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--work", type=int, default=400_000)
    chosen = parser.parse_args()
    print("| network | groups of 8 | seed | method | us | one by one | faster | by bound "
          "| CPU s | and verified | right |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    text, kinds, seeds = "torus:8x8", KINDS, chosen.seeds
    if chosen.large:
        text, kinds, seeds = "torus:8x8x8", ("all-to-all", "all-gather"), 1
    for kind in kinds:
        for seed in range(seeds):
            print(row(text, kind, seed, chosen.work), flush=True)


if __name__ == "__main__":
    main()
