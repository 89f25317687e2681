"""Simulate a large job: data-parallel groups of a pipeline, native ring all-reduces, send/recv.

`python benchmarks/workload/simulate.py [RANKS NODES]` prints nodes, events, CPU seconds of the
second of two runs, since the first one may compile, and the peak memory of the process.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
from collhub_astra_sim.workloads.simulate import run_workload_layer
from collhub_astra_sim.workloads.system import System

from hub_core import parse_topology
from hub_core.model import JobCollective, NodeColumns, NodeKind, ProcessGroup, Workload

_GROUP = 8
_STEP = 4
_SYSTEM = {
    "scheduling-policy": "FIFO",
    "preferred-dataset-splits": 1,
    "all-reduce-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
}


def job(num_ranks: int, num_nodes: int) -> Workload:
    """Steps of four nodes a rank: compute, receive, send, all-reduce in groups of eight."""
    steps = num_nodes // num_ranks // _STEP
    rank = np.repeat(np.arange(num_ranks), steps * _STEP)
    kinds = [NodeKind.COMPUTE, NodeKind.RECV, NodeKind.SEND, NodeKind.COLLECTIVE]
    kind = np.tile(np.array(kinds, np.uint8), num_ranks * steps)
    rows = np.arange(len(rank))
    is_collective = kind == NodeKind.COLLECTIVE
    peer = np.full(len(rank), -1)
    is_send, is_receive = kind == NodeKind.SEND, kind == NodeKind.RECV
    peer[is_send] = (rank[is_send] + _GROUP) % num_ranks
    peer[is_receive] = (rank[is_receive] - _GROUP) % num_ranks
    columns = {
        "rank": rank,
        "kind": kind,
        "duration_ns": np.where(kind == NodeKind.COMPUTE, 5000 + rank % 7, -1),
        "bytes": np.where(is_collective, 1 << 20, 1 << 16),
        "collective": np.where(is_collective, int(JobCollective.ALL_REDUCE), -1),
        "group": np.where(is_collective, rank // _GROUP, -1),
        "peer": peer,
    }
    # Of each step: the compute node after the last step's all-reduce, the others after it.
    first = rows - rows % _STEP
    is_first = rows % _STEP == 0
    parent = np.where(is_first, rows - 1, first)
    has_parent = ~is_first | (rows % (steps * _STEP) != 0)
    edges = parent[has_parent], rows[has_parent]
    nodes = NodeColumns.from_columns(num_ranks, columns, edges)
    groups = [
        ProcessGroup(str(1 + number), tuple(range(number * _GROUP, (number + 1) * _GROUP)))
        for number in range(num_ranks // _GROUP)
    ]
    return Workload(nodes, groups=tuple(groups))


def main() -> None:
    """Run and print."""
    given = [int(text) for text in sys.argv[1:]]
    num_ranks, num_nodes = given or (1024, 1_000_000)
    system = System.of_json(json.dumps(_SYSTEM))
    topology = parse_topology(f"switch:{num_ranks}?bandwidth=50GiB/s&latency=500ns")
    run_workload_layer(job(_GROUP * 2, 64), parse_topology(f"switch:{_GROUP * 2}"), system)
    workload = job(num_ranks, num_nodes)
    start = time.process_time()
    times = run_workload_layer(workload, topology, system)
    seconds = time.process_time() - start
    finish = [time for time in times.rank_finish_ns if time is not None]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{num_ranks} ranks, {len(workload.nodes)} nodes, {times.events} events")
    print(f"{len(finish)} ranks finished, the last after {max(finish, default=0)} ns")
    print(f"{seconds:.2f} CPU s, peak memory {memory:.0f} MiB")


if __name__ == "__main__":
    main()
