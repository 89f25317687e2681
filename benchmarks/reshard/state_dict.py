"""A model of 7 billion parameters from training to inference: TP 8 x PP 4 to TP 4.

Shapes are those of LLaMA 7B in bfloat16; no weights are needed. `python
benchmarks/reshard/state_dict.py` prints schedule, bound and the greedy of Megatron-core's kind, on
hosts of 8 GPUs with one card of 50 GB/s.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from collhub_reshard import Move, parse_move, unit_tasks
from collhub_reshard.scheduling.best import Effort, find_best_schedule
from collhub_reshard.scheduling.host_tasks import build_host_tasks, build_ideal_network
from collhub_reshard.scheduling.public_orders import compute_first_fit_s

LAYERS, HIDDEN, INNER, WORDS = 32, 4096, 11008, 32000
STAGES, HOST = 4, 8
BANDWIDTH = 50e9
# Matrices of a layer: rows, columns, and whether rows are split (else columns).
MATRICES = {
    "wq": (HIDDEN, HIDDEN, True),
    "wk": (HIDDEN, HIDDEN, True),
    "wv": (HIDDEN, HIDDEN, True),
    "wo": (HIDDEN, HIDDEN, False),
    "gate": (INNER, HIDDEN, True),
    "up": (INNER, HIDDEN, True),
    "down": (HIDDEN, INNER, False),
}


def moves(mesh: str, spec_axis: str) -> list[Move]:
    """All tensors from the stage that trains them to a mesh whose axis splits them."""
    found = []

    def add(name: str, stage: int, shape: str, spec: str) -> None:
        source = f"mesh(1,{HOST})@{stage * HOST}: {spec.format('S1')}"
        destination = f"{mesh}: {spec.format('S' + spec_axis)}"
        move = parse_move(f"{shape}:bfloat16", source, destination, name=name, host_size=HOST)
        found.append(move)

    add("embedding", 0, f"{WORDS}x{HIDDEN}", "{} R")
    for layer in range(LAYERS):
        stage = layer * STAGES // LAYERS
        for name, (rows, columns, by_row) in MATRICES.items():
            add(f"{layer}.{name}", stage, f"{rows}x{columns}", "{} R" if by_row else "R {}")
        for name in ("norm1", "norm2"):
            add(f"{layer}.{name}", stage, f"{HIDDEN}", "R")
    add("norm", STAGES - 1, f"{HIDDEN}", "R")
    add("head", STAGES - 1, f"{WORDS}x{HIDDEN}", "{} R")
    return found


def show(title: str, mesh: str, spec_axis: str) -> bool:
    """Schedule and compare one destination; whether it took at most 20 s."""
    started = time.perf_counter()
    tensors = moves(mesh, spec_axis)
    units = unit_tasks(tensors)
    hosts = np.unique(units.host_of[units.host_of >= 0]).tolist()
    network = build_ideal_network(hosts, BANDWIDTH)
    tasks = build_host_tasks(units, tensors, network)
    best = find_best_schedule(tasks, units, Effort())
    seconds = time.perf_counter() - started
    total = sum(move.tensor.num_bytes for move in tensors)
    print(f"{title}: {len(tensors)} tensors, {total / 1e9:.2f} GB, {len(units)} unit tasks")
    ours = tasks.seconds(best.makespan)
    bound = tasks.seconds(best.bound.ticks)
    print(f"  schedule {ours:.4f} s, bound {bound:.4f} s ({best.bound.kind}), {best.status}")
    greedy = float(compute_first_fit_s(units, network))
    print(f"  first fit of Megatron-core's kind {greedy:.4f} s, {greedy / ours:.2f} times ours")
    print(f"  planned in {seconds:.1f} s")
    return seconds <= 20


def main() -> int:
    """One replica on one host, then eight replicas on four hosts."""
    first = STAGES * HOST
    right = [
        show("TP 8 x PP 4 to TP 4", f"mesh(1,4)@{first}", "1"),
        show("TP 8 x PP 4 to 8 replicas of TP 4", f"mesh(8,4)@{first}", "1"),
    ]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
