"""Simulate an algorithm with the constants of a machine: the simulator `machine`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from collhub_machine_profiles.machine_profile import MachineProfile

from collhub_machine_timing.blocks import Instructions, build_instructions
from collhub_machine_timing.constants import (
    KernelTiming,
    check_model,
    kernel_timing,
    nvls_chunk_bytes,
)
from collhub_machine_timing.kernel import run
from collhub_machine_timing.options import MachineOptions
from collhub_machine_timing.profiles import select_profile
from collhub_machine_timing.world import MessagePaths, build_world, find_paths
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import Algorithm, Diagnostic, Location, UsageError, message_bytes
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad, SimulationRequest, SimulationResult
from hub_core.schedules.switch_groups import SwitchGroups, switch_groups

# Further rounds repeat the time of the last simulated one.
_SIMULATED_ROUNDS = 2
_PROTOCOLS = {
    "fifo": ("ll", "ll128", "simple"),
    "exchange": ("ll", "simple"),
    "nvls": ("simple",),
    "direct": ("ll", "simple"),
}


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """An algorithm on a network with everything that does not depend on size and protocol."""

    algorithm: Algorithm
    topology: Topology
    profile: MachineProfile
    kernel: str
    paths: MessagePaths
    groups: SwitchGroups | None
    instructions: Instructions


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Result of one protocol: times in ps; -1 for an instruction that never ended.

    `rank_ps`: finish of each rank, -1 for never. `begin_ps`, `end_ps`: of every instruction, of the
    first and the last round.
    """

    timing: KernelTiming
    rank_ps: Int64Array
    begin_ps: Int64Array
    end_ps: Int64Array
    rounds: float

    @property
    def time_ps(self) -> float:
        """Finish of the last rank, infinite if a rank never finishes."""
        return math.inf if (self.rank_ps < 0).any() else float(self.rank_ps.max(initial=0))


def simulate(request: SimulationRequest, options: MachineOptions) -> SimulationResult:
    """Simulator `machine`: return the times of ranks and steps on a machine.

    Without a protocol, the fastest one. Raises `UsageError` for an unknown profile, one without
    constants, or one of another machine than the topology.
    """
    profile = select_profile(options.machine, request.topology)
    check_model(profile)
    case = _build_case(request, profile, options.kernel)
    if options.protocol is not None and options.protocol not in _PROTOCOLS[case.kernel]:
        known = ", ".join(_PROTOCOLS[case.kernel])
        raise UsageError(
            f"the kernel {case.kernel} has no protocol {options.protocol}",
            cure=f"use {known}",
            code="no-protocol",
        )
    protocols = [options.protocol] if options.protocol else _PROTOCOLS[case.kernel]
    runs = [_run_protocol(case, request.collective_bytes, protocol) for protocol in protocols]
    best = min(runs, key=lambda one: one.time_ps)
    return _result(case, best, request.collective_bytes)


def _build_case(request: SimulationRequest, profile: MachineProfile, kernel: str | None) -> _Case:
    algorithm, topology = request.algorithm, request.topology
    steps = algorithm.steps
    npus = np.arange(algorithm.num_ranks) if request.npus is None else np.asarray(request.npus)
    groups = None
    if kernel in (None, "nvls") and _has_nvls(profile):
        groups = switch_groups(algorithm, topology)
    if kernel is None:
        kernel = "fifo" if groups is None else "nvls"
        if groups is None and _is_exchange(algorithm):
            kernel = "exchange"
    if kernel == "nvls" and groups is None:
        raise UsageError(
            f"no switch of {topology.name} adds up or copies a message of this algorithm",
            cure="choose -O kernel=fifo, or a topology with multicast and reduce",
            code="no-switch",
        )
    paths = find_paths(steps, topology, npus, groups)
    fuses = kernel in ("fifo", "nvls")
    instructions = build_instructions(steps, groups, fuses)
    return _Case(algorithm, topology, profile, kernel, paths, groups, instructions)


def _has_nvls(profile: MachineProfile) -> bool:
    gpu = profile.known_gpu
    return gpu is not None and gpu.nvls_channels > 0


def _is_exchange(algorithm: Algorithm) -> bool:
    """Whether no message waits for another one, and none is added up."""
    steps = algorithm.steps
    _, children = steps.edges()
    return not (steps.sends[children].any() or len(children)) and not (steps.kind == 2).any()


def _run_protocol(case: _Case, collective_bytes: int, protocol: str) -> _Run:
    """Simulate one protocol; blocks that wait for each other in a circle are separated."""
    steps = case.algorithm.steps
    sizes = message_bytes(
        collective_bytes, case.algorithm.collective.unit_count, steps.count
    ).astype(np.float64)
    largest = float(sizes.max(initial=1.0))
    timing = kernel_timing(
        case.profile,
        case.kernel,
        protocol,
        case.algorithm.num_ranks,
        int(largest),
        int(np.bincount(steps.rank[steps.sends], minlength=1).max()),
    )
    chunk = timing.chunk_bytes
    if case.kernel == "nvls":
        chunk = nvls_chunk_bytes(collective_bytes, max(1, round(collective_bytes / largest)))
    rounds = max(1.0, largest / chunk)
    simulated = min(math.ceil(rounds), _SIMULATED_ROUNDS)
    row_bytes = sizes / max(rounds, 1.0) if rounds > simulated else sizes / simulated
    rounds = max(rounds, float(simulated)) if rounds > simulated else float(simulated)
    run_once = _simulate_rounds(case, case.instructions, timing, row_bytes, simulated, rounds)
    if math.isinf(run_once.time_ps) and (steps.lane < 0).all():
        apart = build_instructions(steps, case.groups, fuses=False)
        return _simulate_rounds(case, apart, timing, row_bytes, simulated, rounds)
    return run_once


def _simulate_rounds(
    case: _Case,
    instructions: Instructions,
    timing: KernelTiming,
    row_bytes: Float64Array,
    simulated: int,
    rounds: float,
) -> _Run:
    """Simulate the first rounds, and extend the time of the last one to all rounds."""
    steps = case.algorithm.steps
    world = build_world(
        steps, instructions, case.paths, case.topology, timing, row_bytes, simulated
    )
    run(world, events=2 * len(world.instruction))
    begin = world.instruction["begin"].reshape(simulated, -1)
    end = world.instruction["end"].reshape(simulated, -1)
    ranks = case.algorithm.num_ranks
    finish = np.zeros((simulated, ranks), np.int64)
    for number in range(simulated):
        np.maximum.at(finish[number], instructions.rank, end[number])
    finish = np.maximum.accumulate(finish, axis=0)
    extra = 0.0
    if simulated > 1:
        last = int(finish[-1].max(initial=0)) - int(finish[-2].max(initial=0))
        extra = (rounds - simulated) * last
    rank_ps = finish[-1] + round(extra)
    stuck = np.unique(instructions.rank[(end < 0).any(axis=0)])
    rank_ps[stuck] = -1
    end_ps = np.where(end[-1] < 0, -1, end[-1] + round(extra))
    return _Run(timing, rank_ps, begin[0].copy(), end_ps, rounds)


def _result(case: _Case, best: _Run, collective_bytes: int) -> SimulationResult:
    steps = case.algorithm.steps
    of_row = case.instructions.of_row
    start_ns, end_ns = (_to_ns(times)[of_row] for times in (best.begin_ps, best.end_ps))
    rank_ns = [None if time < 0 else int(time) for time in _to_ns(best.rank_ps)]
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
    sizes = message_bytes(collective_bytes, case.algorithm.collective.unit_count, steps.count)
    loads = _link_loads(case, best.timing, sizes.astype(np.float64))
    return SimulationResult(
        tuple(rank_ns),
        start_ns,
        end_ns,
        loads,
        diagnostics,
        rank_exposed_ns=tuple(rank_ns),
        details={"kernel": case.kernel, "protocol": best.timing.protocol},
    )


def _to_ns(times_ps: Int64Array) -> Int64Array:
    """Round up to nanoseconds; -1 remains."""
    return np.where(times_ps < 0, -1, -(-times_ps // 1000))


def _link_loads(case: _Case, timing: KernelTiming, sizes: Float64Array) -> tuple[LinkLoad, ...]:
    """Return bytes on the wire and busy time per link, the busiest first."""
    paths, topology = case.paths, case.topology
    per_entry = np.repeat(sizes, np.diff(paths.indptr)) * timing.wire
    carried = np.bincount(paths.links, per_entry, minlength=topology.num_links)
    share = np.where(paths.link_crosses, timing.network_efficiency, timing.link_efficiency)
    busy_ns = carried / (topology.bandwidth_bytes_per_s * share) * 1e9
    used = np.flatnonzero(carried)
    used = used[np.lexsort((used, -carried[used], -busy_ns[used]))]
    return tuple(
        LinkLoad(
            int(topology.source[one]),
            int(topology.destination[one]),
            round(carried[one]),
            round(busy_ns[one]),
        )
        for one in used.tolist()
    )
