"""Time an algorithm on a topology with a simulator."""

from __future__ import annotations

from hub_core.model import Algorithm, PluginError, UsageError
from hub_core.network.topology import Topology
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api.simulator import SimulationRequest, SimulationResult, Simulator
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Registry

DEFAULT_SIMULATOR = "analytical"


def simulate(
    algorithm: Algorithm,
    topology: Topology,
    collective_bytes: int,
    *,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> SimulationResult:
    """Time an algorithm with the simulator `backend`; rank r runs on NPU r. Raises `HubError`."""
    check_size(collective_bytes)
    ranks, npus = algorithm.num_ranks, topology.num_npus
    if npus < ranks:
        raise UsageError(
            f"topology {topology.name} has {npus} NPUs, the algorithm {ranks} ranks",
            cure="choose a topology with at least one NPU a rank",
            code="topology-too-small",
        )
    simulator = (registry or discover()).find(Simulator, backend)
    request = SimulationRequest(algorithm, topology, collective_bytes)
    result = call(simulator, SimulationResult, request, bound_options(simulator, options))
    if (times := len(result.rank_finish_ns)) != ranks:
        message = f"{simulator.plugin}: {backend} returned {times} times for {ranks} ranks"
        raise PluginError(message)
    return result


def check_size(collective_bytes: int) -> None:
    """Raise `UsageError` for a size that moves nothing."""
    if collective_bytes < 1:
        message = f"a collective of {collective_bytes} bytes moves nothing"
        raise UsageError(message, cure="state a size, such as 1MiB")
