"""Options of the simulators and of the writer of folders."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core import ChakraReadOptions, TraceOptions
from hub_core.plugin_api import LocalWorkOptions, OptionType, choice, option, optional

CONGESTION_AWARE = "congestion-aware"
CONGESTION_UNAWARE = "congestion-unaware"
NETWORKS = (CONGESTION_AWARE, CONGESTION_UNAWARE)
"""ASTRA-sim's analytical network backends."""

PUBLIC_RELEASE = "public"
SYMBOLIC_BRANCH = "pull-request-343"

BINARY_VARIABLE = "ASTRA_SIM_BIN"
"""The environment variable that names the simulator's binary."""


@dataclass(frozen=True, slots=True)
class AnalyticalOptions(LocalWorkOptions):
    """Options of the simulator `analytical`; bandwidths in bytes per second."""

    network: str = choice(NETWORKS, "whether messages wait for one another on links")
    occupancy: str = choice(
        ("serialization", "alpha-beta"),
        "how long a message keeps a link busy: size/bandwidth, "
        "or latency + size/bandwidth (alpha-beta)",
    )


@dataclass(frozen=True, slots=True)
class AstraFolderOptions(TraceOptions):
    """Options of the writer `astra-sim`: those of its traces, and those of its network.

    `simulator`: which ASTRA-sim will read the folder.
    """

    topology: str | None = optional(
        "the network, as ring:8 or switch:8?bandwidth=50GiB/s&latency=500ns "
        "(default: fully connected, 50GiB/s, 500ns)"
    )
    network: str = choice(NETWORKS, "which backend of ASTRA-sim will run the folder")
    group: str | None = optional(
        "the NPUs that the ranks run on, ascending, as 1,3 (default: the first ones)"
    )
    npus: int | None = optional(
        "NPUs of the world where no topology is given (default: as many as needed)", OptionType.INT
    )
    name: str | None = optional("name of the algorithm's traces (default: the collective)")
    simulator: str = choice(
        (PUBLIC_RELEASE, SYMBOLIC_BRANCH),
        "which ASTRA-sim will run the folder: the public one reads sizes in bytes, "
        "the branch of its pull request 343 sizes in chunks",
    )


@dataclass(frozen=True, slots=True)
class AstraFolderReadOptions(ChakraReadOptions):
    """Options of the reader `astra-sim`: those of its traces, and what to take of a folder."""

    algorithm: str | None = optional("which algorithm, of a folder with several")
    group: str | None = optional("which communicator group runs it, where several do")
    workload: str | None = optional(
        "prefix of the workload's traces in the folder, where it is not clear"
    )


@dataclass(frozen=True, slots=True)
class AstraBinaryOptions:
    """Options of the simulator `astra-sim`."""

    binary: str | None = option(
        OptionType.PATH, None, "path of the simulator's binary", environment=BINARY_VARIABLE
    )
    network: str | None = choice(
        (None, *NETWORKS), "which backend the binary is (default: by its name)"
    )
    time_limit_s: float = option(OptionType.FLOAT, 3600.0, "seconds after which a run is ended")
