"""Time an algorithm on a topology with a simulator."""

from __future__ import annotations

from hub_core.model import Algorithm, PluginError, UsageError, format_ranks, placement_of
from hub_core.network.topology import Topology
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.topology_input import as_topology
from hub_core.plugin_api.simulator import SimulationRequest, SimulationResult, Simulator
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Registry

DEFAULT_SIMULATOR = "analytical"


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
    registry = registry or discover()
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
    request = SimulationRequest(algorithm, topology, collective_bytes, npus)
    result = call(simulator, SimulationResult, request, bound_options(simulator, options))
    if (times := len(result.rank_finish_ns)) != ranks:
        message = f"{simulator.plugin}: {backend} returned {times} times for {ranks} ranks"
        raise PluginError(message)
    return result


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
