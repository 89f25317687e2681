"""Synthesis for runtimes: resources and times of the algorithms that `--for` synthesizes.

    python benchmarks/synthesis/runtimes.py [NUMBER ...]

One line per case: CPU seconds of the constrained search, thread blocks and operations of the rank
with the most, whether the size is served, the time against the unconstrained search and against
NCCL's choice, both under the timing of the machine if the network is one. A bar that is missed is
marked with `!`: 10 CPU seconds, 5 % against the unconstrained search, blocks, operations.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

# Threads of linear algebra would count to the CPU seconds while they wait. numpy reads this once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hub_core
from hub_core import run_registry
from hub_core.model import Algorithm, Collective, CollectiveKind, HubError
from hub_core.network import Topology
from hub_core.pipeline.runtimes import time_on_runtime
from hub_core.pipeline.simulation import (
    TimingSource,
    choose_timing,
    predict_library_times,
    simulate,
)
from hub_core.pipeline.synthesis import create_synthesis_request, run_synthesizer
from hub_core.plugin_api import IDEAL, LibraryCall, LibraryTimesRequest, SynthesisResult

_MAX_CPU_S, _MAX_SLOWDOWN = 10.0, 1.05
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Case:
    """A question with its runtime, and the bars for thread blocks and operations of a rank."""

    kind: CollectiveKind
    topology: str
    size: int
    runtime: str
    max_blocks: int | None = None
    max_operations: int | None = None


_CASES = (
    _Case(CollectiveKind.ALL_REDUCE, "dgx-h100", 1 * _MIB, "mscclpp", 24, 500),
    _Case(CollectiveKind.ALL_REDUCE, "dgx-h100", 64 * _MIB, "mscclpp", 24, 500),
    _Case(CollectiveKind.ALL_REDUCE, "dgx-h100", 64 * _MIB, "executor"),
    _Case(CollectiveKind.ALL_GATHER, "dgx-a100:2", 4 * _MIB, "executor"),
    _Case(CollectiveKind.ALL_REDUCE, "dgx-a100:2", 256 * _MIB, "executor", 64, 4000),
    _Case(CollectiveKind.ALL_TO_ALL, "dgx1v", 64 * _MIB, "executor"),
    _Case(CollectiveKind.BROADCAST, "dgx-h100:2", 64 * _MIB, "executor"),
    # A call of an all-gather has equal shares: a multiple of 18 elements.
    _Case(CollectiveKind.ALL_GATHER, "switch:18", 18 * _MIB, "executor"),
)


def _synthesize(
    case: _Case, topology: Topology, timing: TimingSource, runtime: str
) -> SynthesisResult:
    kind, ranks = case.kind, topology.num_npus
    collective = Collective(
        kind,
        ranks,
        kind.traits.parts(ranks),
        root=0 if kind.traits.is_rooted else None,
        in_place=kind is not CollectiveKind.ALL_TO_ALL,
    )

    def judge(algorithm: Algorithm) -> int | None:
        return simulate(
            algorithm, topology, case.size, backend=timing.backend, options=timing.options
        ).time_ns

    request = create_synthesis_request(
        collective,
        topology,
        case.size,
        judge=None if timing.machine is None else judge,
        runtime=runtime,
        timing=timing,
    )
    return run_synthesizer(request, "auto")


def _predict_nccl_ns(case: _Case, topology: Topology, timing: TimingSource) -> float | None:
    if timing.machine is None:
        return None
    calls = (LibraryCall(str(case.kind), tuple(range(topology.num_npus)), case.size),)
    request = LibraryTimesRequest(timing.machine.name, calls)
    return predict_library_times(request, run_registry()).times[0].time_ns


def _mark(number: float, limit: float | None, text: str) -> str:
    return text + ("!" if limit is not None and number > limit else "")


def _run(case: _Case) -> str:
    """Run both searches; return the line of the case."""
    topology = hub_core.read_topology(case.topology)
    timing = choose_timing(
        None, "analytical", topology, run_registry(), uses_known=True, tries_instances=True
    )
    # Both searches are timed as the runtime executes algorithms.
    timing = time_on_runtime(timing, case.runtime, run_registry())
    free = _synthesize(case, topology, timing, IDEAL)
    begin = time.process_time()
    try:
        result = _synthesize(case, topology, timing, case.runtime)
    except HubError as error:
        return f"failed: {error}"
    cpu_s = time.process_time() - begin
    fit = result.fit
    assert fit is not None
    slowdown = result.time_ns / free.time_ns
    nccl_ns = _predict_nccl_ns(case, topology, timing)
    cells = [
        _mark(cpu_s, _MAX_CPU_S, f"{cpu_s:.1f}"),
        _mark(fit.blocks, case.max_blocks, str(fit.blocks)),
        _mark(fit.operations, case.max_operations, str(fit.operations)),
        "yes" if case.size // 4 % fit.units == 0 else "no!",
        _mark(slowdown, _MAX_SLOWDOWN, f"{slowdown:.3f}"),
        "-" if nccl_ns is None else f"{result.time_ns / nccl_ns:.3f}",
    ]
    return "".join(cell.rjust(12) for cell in cells)


def _describe_case(number: int) -> str:
    case = _CASES[number]
    name = f"{number} {case.kind} {case.topology} {case.size // _MIB} MiB {case.runtime}"
    return name.ljust(44) + _run(case)


def main(numbers: list[int]) -> None:
    """Print one line per case, or per case of these numbers."""
    heads = ("CPU s", "blocks", "operations", "served", "vs free", "vs NCCL")
    print(" " * 44 + "".join(head.rjust(12) for head in heads))
    # A process for each case: large algorithms of earlier cases would slow down later ones.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as processes:
        for line in processes.map(_describe_case, numbers or range(len(_CASES))):
            print(line, flush=True)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
