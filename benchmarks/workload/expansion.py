"""Expand a data-parallel step: times of the flat graph beside those measured with ASTRA-sim.

`python benchmarks/workload/expansion.py` prints "case, published, ours" in ns, then the seconds in
which 10 000 collectives with 12 algorithms are expanded. Published: six layers, 5 us each way, an
all-reduce of 1 MiB each, 5 us after all; ring of 8 at 50 GiB/s and 500 ns, endpoint delay 1;
ASTRA-sim 518bd51.
"""

from __future__ import annotations

import json
import time

import numpy as np
from collhub_astra_sim.workloads.simulate import UNLIMITED_SLOTS, run_workload_layer
from collhub_astra_sim.workloads.system import System
from collhub_expansion.expand import Expanded, expand_workload
from collhub_expansion.making import Maker
from collhub_expansion.native import native_system

from hub_core import Algorithm, InputError, discover, parse_rule, parse_topology, read, verify
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import WorkloadTimes

_RANKS, _LAYERS, _LAYER_NS, _BYTES = 8, 6, 5000, 1 << 20
_SYSTEM = json.dumps(
    {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 1,
        "preferred-dataset-splits": 1,
        "active-chunks-per-dimension": 1,
        "collective-optimization": "baseline",
        "all-reduce-implementation": ["ring"],
    }
)
_RING = parse_topology("ring:8?bandwidth=50GiB/s&latency=500ns")
_REGISTRY = discover()
_PUBLISHED = {
    ("frozen slots", True, None): 287134,
    ("free slots", False, None): 246047,
    ("frozen slots, 4 pieces", True, 4): 247972,
    ("free slots, 4 pieces", False, 4): 245462,
}
_SIZES, _CALLS = 12, 10_000


def data_parallel_step() -> Workload:
    """Forward, backward with an all-reduce behind every layer, and a computation after all."""
    nodes: list[tuple[int, int, int]] = []
    edges: list[tuple[int, int]] = []
    for rank in range(_RANKS):
        compute, reduced = -1, []
        for layer in range(2 * _LAYERS):
            edges += [(compute, len(nodes))] * (compute >= 0)
            compute = len(nodes)
            nodes.append((rank, NodeKind.COMPUTE, _LAYER_NS))
            if layer >= _LAYERS:
                edges.append((compute, len(nodes)))
                reduced.append(len(nodes))
                nodes.append((rank, NodeKind.COLLECTIVE, -1))
        edges += [(one, len(nodes)) for one in reduced]
        nodes.append((rank, NodeKind.COMPUTE, _LAYER_NS))
    rank, kind, duration_ns = np.array(nodes).T
    is_collective = kind == NodeKind.COLLECTIVE
    columns = {
        "rank": rank,
        "kind": kind,
        "duration_ns": duration_ns,
        "bytes": np.where(is_collective, _BYTES, -1),
        "collective": np.where(is_collective, int(JobCollective.ALL_REDUCE), -1),
    }
    parents, children = np.array(edges).T
    table = NodeColumns.from_columns(_RANKS, columns, (parents, children))
    return Workload(table, extensions={"astra-sim": {"system": _SYSTEM}})


def many_collectives() -> Workload:
    """All-reduces of twelve sizes, one after another, of all ranks."""
    rank = np.repeat(np.arange(_RANKS), _CALLS)
    turn = np.tile(np.arange(_CALLS), _RANKS)
    columns = {
        "rank": rank,
        "kind": np.full(len(rank), int(NodeKind.COLLECTIVE)),
        "bytes": _BYTES + 64 * (turn % _SIZES),
        "collective": np.full(len(rank), int(JobCollective.ALL_REDUCE)),
    }
    children = np.flatnonzero(turn > 0)
    table = NodeColumns.from_columns(_RANKS, columns, (children - 1, children))
    return Workload(table)


def expansion(
    workload: Workload, rule: str | None, times: WorkloadTimes | None, splits: int | None
) -> Expanded:
    """The workload expanded, every algorithm judged."""
    system = native_system(workload)
    rules = [] if rule is None else [parse_rule(rule, ["ring"])]
    maker = Maker(_RING, system, workload.num_ranks, _REGISTRY, read=read, admit=_admit)
    return expand_workload(workload, rules, maker, system, splits=splits, times=times)


def _admit(algorithm: Algorithm, name: str) -> None:
    found = verify(algorithm)
    if not found.ok:
        raise InputError(found.diagnostics)


def main() -> None:
    """Print the table, and the seconds of the large expansion."""
    workload, system = data_parallel_step(), System.of_json(_SYSTEM)
    native = run_workload_layer(workload, _RING, system)
    times = WorkloadTimes(native.rank_finish_ns, native.start_ns, native.end_ns)
    print(f"native, {287134}, {max(time or 0 for time in native.rank_finish_ns)}")
    for (case, is_frozen, splits), published in _PUBLISHED.items():
        flat = expansion(workload, None, times if is_frozen else None, splits).workload
        found = run_workload_layer(flat, _RING, system, slots=UNLIMITED_SLOTS)
        print(f"{case}, {published}, {max(time or 0 for time in found.rank_finish_ns)}")
    large = many_collectives()
    start = time.perf_counter()
    result = expansion(large, "*=ring", None, None)
    seconds = time.perf_counter() - start
    calls = sum(use.collectives for use in result.uses)
    print(
        f"{calls} collectives, {len(result.algorithms)} algorithms: {seconds:.1f} s,"
        f" {len(result.workload.nodes)} nodes"
    )


if __name__ == "__main__":
    main()
