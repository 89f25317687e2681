"""The simulator `machine`: times of an algorithm with the constants of a machine.

`check` compiles its kernel in advance, by a small run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from collhub_machine_timing.plugin import MachineOptions
from collhub_machine_timing.runs import (
    CaseRun,
    build_cases,
    find_best_run,
    load_links,
)
from collhub_machine_timing.world import link_rates
from hub_core.columns import Int64Array
from hub_core.model import Diagnostic, Location, message_bytes
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    LinkLoad,
    SimulationRequest,
    SimulationResult,
    WarmOptions,
)


def simulate(request: SimulationRequest, options: MachineOptions) -> SimulationResult:
    """Simulate an algorithm on a machine and return the times of ranks and steps.

    Kernel, protocol, number of instances and largest message are those of the options; by default
    the fastest ones are used. The number of pieces is that of the options. If it is not given, it
    is 1 with a given number of instances, otherwise chosen too. 0 means not given for both numbers.

    Raises `UsageError` for an unknown profile, a profile without constants or of another machine
    than the topology, a kernel that does not suit the algorithm, and a protocol that no kernel has
    (`no-protocol`).
    """
    cases = build_cases(
        request.algorithm, request.topology, request.npus, options.machine, options.kernel
    )
    instances = options.instances or None
    pieces = options.pieces if options.pieces is not None else instances and 1
    search = find_best_run(
        cases, request.collective_bytes, options.protocol, instances, pieces or None, options.chunk
    )
    best = search.best
    of_row = best.instructions.of_row[best.case.row_of_copy]
    start_ns, end_ns = (_to_ns(times)[of_row] for times in (best.begin_ps, best.end_ps))
    rank_ns = tuple(None if time < 0 else time for time in _to_ns(best.rank_ps).tolist())
    diagnostics = tuple(
        Diagnostic(
            "never-finishes",
            f"rank {rank} never finishes: its thread blocks wait for each other in a circle",
            location=Location(rank=rank),
            cure="give each connection a thread block of its own",
        )
        for rank, time in enumerate(rank_ns)
        if time is None
    )
    passes: list[tuple[str, Mapping[str, str]]] = []
    if best.variant.instances > 1:
        passes.append(("replicate", {"instances": str(best.variant.instances)}))
    if best.variant.pieces > 1:
        passes.append(("pipeline", {"pieces": str(best.variant.pieces)}))
    return SimulationResult(
        rank_ns,
        start_ns,
        end_ns,
        _link_loads(best, request.collective_bytes),
        diagnostics,
        rank_exposed_ns=rank_ns,
        details={
            "kernel": best.case.kernel,
            "protocol": best.variant.protocol,
            "instances": best.variant.instances,
            "pieces": best.variant.pieces,
            "variants": search.simulated,
            **({"untried": search.not_tried} if search.not_tried else {}),
        },
        passes=tuple(passes),
    )


def _to_ns(times_ps: Int64Array) -> Int64Array:
    """Convert ps to ns, rounded up; negative times (never) become -1."""
    return np.where(times_ps < 0, -1, -(-times_ps // 1000))


def _link_loads(best: CaseRun, collective_bytes: int) -> tuple[LinkLoad, ...]:
    """Return the traffic of every link that carries bytes, sorted by descending busy time.

    Each `LinkLoad` has the link's two nodes, the bytes and the busy time in ns. The bytes are the
    sum over all messages of the call of `collective_bytes`, not of one chunk. They include the
    overhead of the protocol (factor `timing.wire`). The busy time is the bytes divided by
    the rate that the kernel attains on the link (`link_rates`). Links with equal busy times are
    sorted by descending bytes, then by number in the topology. Both values are rounded to integers
    after sorting. Empty if no link carries bytes. Raises `InputError` (`size-range`) if all
    messages have together about 2^63 bytes or more.
    """
    case = best.case
    topology = case.topology
    units, counts = case.algorithm.collective.unit_count, case.algorithm.steps.count
    sizes = message_bytes(collective_bytes, units, counts).astype(np.float64)
    carried = load_links(case, sizes) * best.timing.wire
    busy_ns = carried / link_rates(topology, case.paths, best.timing) * 1e9
    used = np.flatnonzero(carried)
    used = used[np.lexsort((used, -carried[used], -busy_ns[used]))]
    ends = topology.source[used].tolist(), topology.destination[used].tolist()
    figures = np.rint(carried[used]).astype(np.int64), np.rint(busy_ns[used]).astype(np.int64)
    columns = (*ends, *(column.tolist() for column in figures))
    return tuple(LinkLoad(*load) for load in zip(*columns, strict=True))


_NETWORK, _BYTES = "switch:2?bandwidth=450GB/s", 64


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the kernel for later runs if `options.warm` is set; otherwise do nothing.

    The kernel is compiled by the simulation of a 64-byte ring all-reduce of two ranks on h100.
    `request` is not used. The report is always ok. Without `warm` it is otherwise empty; with
    `warm` it has one line `machine kernel` with the elapsed seconds, such as `ready after 3.2 s`.
    """
    if not options.warm:
        return CheckReport(True)
    # Imported here, so that a check that is not requested needs no time.
    from collhub_kernels import compile_at_once

    from hub_core import parse_topology
    from hub_core.testing import ring_all_reduce

    start = time.perf_counter()
    simulation = SimulationRequest(ring_all_reduce(2), parse_topology(_NETWORK), _BYTES)
    with compile_at_once():
        simulate(simulation, MachineOptions(machine="h100"))
    details = f"ready after {time.perf_counter() - start:.1f} s"
    return CheckReport(True, lines=(CheckLine("machine kernel", True, details),))
