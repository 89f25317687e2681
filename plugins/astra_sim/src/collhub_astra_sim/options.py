"""Options of the simulators and of the writer of folders."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option

CONGESTION_AWARE = "congestion-aware"
CONGESTION_UNAWARE = "congestion-unaware"
NETWORKS = (CONGESTION_AWARE, CONGESTION_UNAWARE)
"""ASTRA-sim's analytical network backends."""

BINARY_VARIABLE = "ASTRA_SIM_BIN"
"""The environment variable that names the simulator's binary."""


@dataclass(frozen=True, slots=True)
class AnalyticalOptions:
    """Options of the simulator `analytical`; bandwidths in bytes per second."""

    network: str = option(
        OptionType.TEXT,
        CONGESTION_AWARE,
        "whether messages wait for one another on links",
        choices=NETWORKS,
    )
    occupancy: str = option(
        OptionType.TEXT,
        "serialization",
        "how long a message keeps a link busy: size/bandwidth, "
        "or latency + size/bandwidth (alpha-beta)",
        choices=("serialization", "alpha-beta"),
    )
    reduce_bandwidth: float | None = option(
        OptionType.BANDWIDTH,
        None,
        "bytes reduced per second, as 200GB/s; not given: 1 ns each",
    )
    copy_bandwidth: float | None = option(
        OptionType.BANDWIDTH,
        None,
        "bytes copied per second, as 1TB/s; not given: 1 ns each",
    )


@dataclass(frozen=True, slots=True)
class AstraFolderOptions:
    """Options of the writer `astra-sim`.

    The last three are those of the writer `chakra`, which makes the traces, without `ranks`: a
    folder runs as a whole, so all ranks are in it.
    """

    topology: str | None = option(
        OptionType.TEXT,
        None,
        "the network, as ring:8 or switch:8?bandwidth=50GiB/s&latency=500ns "
        "(default: fully connected, 50GiB/s, 500ns)",
    )
    network: str = option(
        OptionType.TEXT,
        CONGESTION_AWARE,
        "which backend of ASTRA-sim will run the folder",
        choices=NETWORKS,
    )
    group: str | None = option(
        OptionType.TEXT,
        None,
        "the NPUs that the ranks run on, ascending, as 1,3 (default: the first ones)",
    )
    npus: int | None = option(
        OptionType.INT,
        None,
        "NPUs of the world where no topology is given (default: as many as needed)",
    )
    name: str | None = option(
        OptionType.TEXT,
        None,
        "name of the algorithm's traces (default: the collective)",
    )
    size: int | None = option(
        OptionType.SIZE,
        None,
        "size of the collective that comm_size is written for"
        " (default: the algorithm's own size, else 1 MiB a unit)",
    )
    dialect: str = option(
        OptionType.TEXT,
        "both",
        "how messages state their size: in bytes (absolute), in chunks (symbolic), or both",
        choices=("both", "absolute", "symbolic"),
    )
    flatten: bool = option(
        OptionType.BOOL,
        False,
        "write control dependencies as data dependencies, for readers that ignore them",
    )


@dataclass(frozen=True, slots=True)
class AstraBinaryOptions:
    """Options of the simulator `astra-sim`."""

    binary: str | None = option(
        OptionType.PATH,
        None,
        "path of the simulator's binary",
        environment=BINARY_VARIABLE,
    )
    network: str | None = option(
        OptionType.TEXT,
        None,
        "which backend the binary is (default: by its name)",
        choices=NETWORKS,
    )
    time_limit_s: float = option(
        OptionType.FLOAT,
        3600.0,
        "seconds after which a run is ended",
    )


@dataclass(frozen=True, slots=True)
class WarmOptions:
    """What `collhub doctor --warm` sets."""

    warm: bool = option(
        OptionType.BOOL, False, "compile the kernels now, so that no work waits for them later"
    )
