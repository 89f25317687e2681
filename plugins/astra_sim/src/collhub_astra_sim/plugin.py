"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core import CHAKRA_WRITER
from hub_core.plugin_api import (
    Format,
    FormatWriter,
    HealthCheck,
    Layout,
    Option,
    OptionType,
    Simulator,
    TopologyReader,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

ANALYTICAL = Simulator(
    "analytical",
    "ASTRA-sim's analytical timing model, exact to the cycle, on any topology",
    "collhub_astra_sim.analytical:simulate",
    (
        Option(
            "network",
            OptionType.TEXT,
            "congestion-aware",
            "whether messages wait for one another on links",
            ("congestion-aware", "congestion-unaware"),
        ),
        Option(
            "occupancy",
            OptionType.TEXT,
            "serialization",
            "how long a message keeps a link busy: size/bandwidth, or latency + size/bandwidth (alpha-beta)",
            ("serialization", "alpha-beta"),
        ),
        Option(
            "reduce_bandwidth",
            OptionType.TEXT,
            None,
            "bytes reduced per second, as 200GB/s; not given: 1 ns each",
        ),
        Option(
            "copy_bandwidth",
            OptionType.TEXT,
            None,
            "bytes copied per second, as 1TB/s; not given: 1 ns each",
        ),
    ),
)


_NETWORKS = ("congestion-aware", "congestion-unaware")

FOLDER = FormatWriter(
    Format(
        "astra-sim",
        "a folder that ASTRA-sim runs as it is: traces, configurations and run.sh",
        (),
        layout=Layout.FOLDER,
    ),
    "collhub_astra_sim.folder:write",
    (
        Option(
            "topology",
            OptionType.TEXT,
            None,
            "the network, as ring:8 or switch:8?bandwidth=50GiB/s&latency=500ns (default: fully connected, 50GiB/s, 500ns)",
        ),
        Option(
            "network",
            OptionType.TEXT,
            _NETWORKS[0],
            "which backend of ASTRA-sim will run the folder",
            _NETWORKS,
        ),
        Option(
            "group",
            OptionType.TEXT,
            None,
            "the NPUs that the ranks run on, ascending, as 1,3 (default: the first ones)",
        ),
        Option(
            "npus",
            OptionType.INT,
            None,
            "NPUs of the world where no topology is given (default: as many as needed)",
        ),
        Option(
            "name",
            OptionType.TEXT,
            None,
            "name of the algorithm's traces (default: the collective)",
        ),
        # A folder runs as a whole: all ranks are in it.
        *(option for option in CHAKRA_WRITER.options if option.name != "ranks"),
    ),
)

ASTRA_SIM = Simulator(
    "astra-sim",
    "the real ASTRA-sim (analytical backends), run as a program that the user names",
    "collhub_astra_sim.run_binary:simulate",
    (
        Option(
            "binary",
            OptionType.PATH,
            None,
            "path of the simulator's binary",
            environment="ASTRA_SIM_BIN",
        ),
        Option(
            "network",
            OptionType.TEXT,
            None,
            "which backend the binary is (default: by its name)",
            _NETWORKS,
        ),
        Option("time_limit_s", OptionType.FLOAT, 3600.0, "seconds after which a run is ended"),
    ),
)

NETWORK_YAML = TopologyReader(
    Format(
        "astra-sim-network",
        "network YAML of ASTRA-sim",
        (".yml", ".yaml"),
        rb"(?m)^(topology|npus_count)[ \t]*:",
    ),
    "collhub_astra_sim.network_yaml:read",
    samples="collhub_astra_sim.network_yaml:samples",
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
def collhub_health_checks() -> Sequence[HealthCheck]:
    """Describe the check of the binary."""
    return [HealthCheck("astra-sim", "collhub_astra_sim.health:check")]
