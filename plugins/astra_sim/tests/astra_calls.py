"""Call what the plugin offers as the program does: options as texts or values, bound by name."""

from __future__ import annotations

from collhub_astra_sim import binary
from collhub_astra_sim.folders.write import write
from collhub_astra_sim.options import AnalyticalOptions, AstraBinaryOptions, AstraFolderOptions
from collhub_astra_sim.simulating import analytical

from hub_core.model import Algorithm
from hub_core.network import Topology
from hub_core.plugin_api import OptionValue, SimulationRequest, SimulationResult, WriteResult
from hub_core.registry.bind_options import bind_options


def simulate_analytically(
    algorithm: Algorithm, topology: Topology, size: int, **options: OptionValue
) -> SimulationResult:
    """The simulator `analytical`."""
    bound = bind_options(AnalyticalOptions, options, {}, "simulator analytical")
    assert isinstance(bound, AnalyticalOptions)
    return analytical.simulate(SimulationRequest(algorithm, topology, size), bound)


def simulate_by_binary(
    algorithm: Algorithm, topology: Topology, size: int, **options: OptionValue
) -> SimulationResult:
    """The simulator `astra-sim`."""
    bound = bind_options(AstraBinaryOptions, options, {}, "simulator astra-sim")
    assert isinstance(bound, AstraBinaryOptions)
    return binary.simulate(SimulationRequest(algorithm, topology, size), bound)


def write_folder(algorithm: Algorithm, **options: OptionValue) -> WriteResult:
    """The writer `astra-sim`."""
    bound = bind_options(AstraFolderOptions, options, {}, "writer astra-sim")
    assert isinstance(bound, AstraFolderOptions)
    return write(algorithm, bound)
