"""Simulate algorithms and workloads by the simulators of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hub_core.model import (
    Algorithm,
    InputError,
    PluginError,
    UsageError,
    format_ranks,
    placement_of,
)
from hub_core.network.topology import Topology
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.topology_input import as_topology
from hub_core.plugin_api import WorkloadRequest, WorkloadSimulator, WorkloadTimes
from hub_core.plugin_api.runs import SimulationRequest, SimulationResult, Simulator
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry

DEFAULT_SIMULATOR = "analytical"
# Nanoseconds in femtoseconds.
_FINER = 10**6
# Ratio of a time to a bound up to which fractions of a nanosecond may matter.
_NEAR_RATIO = 1.02


def simulate(
    algorithm: Algorithm,
    topology: Topology | str,
    collective_bytes: int,
    *,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> SimulationResult:
    """Time an algorithm for a collective of `collective_bytes` with the simulator `backend`.

    Rank r runs on NPU r, unless the algorithm says otherwise (`placement_of`). A text such as
    `ring:4`, or a file, is read as a topology. Raises `HubError`.
    """
    check_size(collective_bytes)
    registry = registry or run_registry()
    topology = as_topology(topology, registry)
    ranks, npus = algorithm.num_ranks, placement_of(algorithm)
    _check_npus(topology, ranks, npus)
    simulator = registry.find(Simulator, backend)
    if npus is not None and not simulator.offer.places_ranks:
        raise UsageError(
            f"the algorithm runs on NPUs {format_ranks(npus)}, "
            f"and {backend} simulates on NPUs 0 to n-1 alone",
            cure=f"use the simulator {DEFAULT_SIMULATOR}",
            code="placed",
        )
    request = SimulationRequest(algorithm, topology, collective_bytes, npus, registry)
    result = call(simulator, SimulationResult, request, bound_options(simulator, options))
    if (times := len(result.rank_finish_ns)) != ranks:
        message = f"{simulator.plugin}: {backend} returned {times} times for {ranks} ranks"
        raise PluginError(message)
    return result


@dataclass(frozen=True, slots=True)
class ExactTime:
    """A time in picoseconds, None where a rank never finishes, and what rounding may have taken."""

    time_ps: int | None
    slack_ps: int = 0


def exact_time(
    algorithm: Algorithm,
    topology: Topology,
    collective_bytes: int,
    time_ns: int | None,
    *,
    near_ps: int | None = None,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> ExactTime:
    """The time that `backend` returned, in picoseconds, for ratios to bounds.

    Simulators drop fractions of a nanosecond of every message, as ASTRA-sim does, so that a time
    near a bound may fall below it. If the time is within 2 % of `near_ps` (None: always), a
    simulator that scales is asked again on a network slowed down by 10^6, where it counts
    femtoseconds. The slack is then 1 fs, else 1 ns, for every step of the algorithm, and beyond
    2^50 ps what doubles of 53 bits round off.
    """
    if time_ns is None:
        return ExactTime(None)
    time_ps = 1000 * time_ns
    steps = len(algorithm.steps)
    if near_ps is not None and time_ps > _NEAR_RATIO * near_ps:
        return ExactTime(time_ps)
    registry = registry or run_registry()
    if not registry.find(Simulator, backend).offer.scales:
        return ExactTime(time_ps, _slack_ps(time_ps, 1000 * steps))
    try:
        slow = replace(
            topology,
            bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / _FINER,
            latency_s=topology.latency_s * _FINER,
            dimensions=(),
        )
        finer = simulate(
            algorithm,
            slow,
            collective_bytes,
            backend=backend,
            options=options,
            registry=registry,
        )
    except InputError:
        # The time is above 10^18 fs, some 20 minutes, or a link is too slow to be slowed down.
        return ExactTime(time_ps, _slack_ps(time_ps, 1000 * steps))
    time_fs = finer.time_ns or 0
    # Work of ranks alone is not slowed down: what it takes is in the plain time.
    return ExactTime(max(time_ps, -(-time_fs // 1000)), -(-steps // 1000))


def _slack_ps(time_ps: int, truncated_ps: int) -> int:
    """Truncation of messages plus 2^-50 of the time: simulators divide doubles of 53 bits."""
    return truncated_ps + (time_ps >> 50)


def _check_npus(topology: Topology, ranks: int, npus: tuple[int, ...] | None) -> None:
    """Refuse a topology without an NPU for every rank."""
    count, needed = topology.num_npus, 1 + max(npus or (ranks - 1,))
    if count < needed:
        what = f"{ranks} ranks" if npus is None else f"ranks on NPUs {format_ranks(npus)}"
        raise UsageError(
            f"topology {topology.name} has {count} NPUs, the algorithm {what}",
            cure="choose a topology with at least one NPU a rank"
            if npus is None
            else f"choose a topology of at least {needed} NPUs",
            code="topology-too-small",
        )


def check_size(collective_bytes: int) -> None:
    """Raise `UsageError` for a size that moves nothing."""
    if collective_bytes < 1:
        message = f"a collective of {collective_bytes} bytes moves nothing"
        raise UsageError(message, cure="state a size, such as 1MiB")


def simulate_job(
    request: WorkloadRequest, name: str, options: OptionText, registry: Registry
) -> WorkloadTimes:
    """The times of a workload by the simulator of a name. Raises `HubError`."""
    found = registry.find(WorkloadSimulator, name)
    result = call(found, WorkloadTimes, request, bound_options(found, options))
    ranks = request.workload.num_ranks
    if {len(result.rank_finish_ns), len(result.rank_exposed_ns)} != {ranks}:
        raise PluginError(f"{found.plugin}: {name} returned times for other than {ranks} ranks")
    return result
