"""Offers of this distribution to the hub: folders for ASTRA-sim, its networks, and simulators."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_astra_sim.options import (
    AnalyticalOptions,
    AstraBinaryOptions,
    AstraFolderOptions,
    WarmOptions,
)
from hub_core.plugin_api import (
    Check,
    Format,
    FormatWriter,
    Layout,
    Simulator,
    Subject,
    TopologyReader,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

ANALYTICAL = Simulator(
    "analytical",
    "ASTRA-sim's analytical timing model, exact to the cycle, on any topology",
    "collhub_astra_sim.simulating.analytical:simulate",
    AnalyticalOptions,
)

ASTRA_SIM = Simulator(
    "astra-sim",
    "the real ASTRA-sim (analytical backends), run as a program that the user names",
    "collhub_astra_sim.running.binary_simulator:simulate",
    AstraBinaryOptions,
)

FOLDER = FormatWriter(
    Format(
        "astra-sim",
        "a folder that ASTRA-sim runs as it is: traces, configurations and run.sh",
        (),
        layout=Layout.FOLDER,
    ),
    "collhub_astra_sim.folders.write:write",
    AstraFolderOptions,
)

NETWORK_YAML = TopologyReader(
    Format(
        "astra-sim-network",
        "network YAML of ASTRA-sim",
        (".yml", ".yaml"),
        rb"(?m)^(topology|npus_count)[ \t]*:",
    ),
    "collhub_astra_sim.networks.network_yaml:read",
    samples="collhub_astra_sim.networks.network_yaml:samples",
)

BINARY = Check(
    "astra-sim",
    Subject.INSTALLATION,
    "whether the ASTRA-sim binary that is named, if any, gives the known time of one message",
    "collhub_astra_sim.running.health:check",
)

KERNELS = Check(
    "analytical-kernels",
    Subject.INSTALLATION,
    "compiles the kernels beforehand, for doctor --warm",
    "collhub_astra_sim.simulating.warming:check",
    WarmOptions,
)


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | Simulator]:
    """Describe the writer of folders and the simulators."""
    return [FOLDER, ANALYTICAL, ASTRA_SIM]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader]:
    """Describe the reader of network files."""
    return [NETWORK_YAML]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check of the binary, and what compiles the kernels beforehand."""
    return [BINARY, KERNELS]
