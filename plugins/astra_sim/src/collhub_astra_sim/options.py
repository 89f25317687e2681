"""Options of the simulators, the readers and writers of folders, and the synthesizers."""

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

SMALL_GROUP_NS = 10
"""Delay of the endpoints in groups smaller than the system, regardless of the system's setting."""

SIMAI = "simai"
"""Value of `header` for networks in SimAI's format for ns-3."""

BINARY_VARIABLE = "ASTRA_SIM_BIN"
"""Environment variable with the path of the simulator's binary."""


@dataclass(frozen=True, slots=True)
class AnalyticalOptions(LocalWorkOptions):
    """Options of the simulator `analytical`; bandwidths in bytes per second."""

    network: str = choice(NETWORKS, "whether messages wait for one another on links")
    occupancy: str = choice(
        ("serialization", "alpha-beta"),
        "how long a message keeps a link busy: size/bandwidth, "
        "or latency + size/bandwidth (alpha-beta)",
    )
    rendezvous: bool = option(OptionType.BOOL, False, "messages wait until their receiver is ready")


@dataclass(frozen=True, slots=True)
class AstraFolderOptions(TraceOptions):
    """Options of the writer `astra-sim`: those of its traces, and those of its network.

    `simulator`: the ASTRA-sim version that will read the folder.
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
    """Options of the reader `astra-sim`: those of its traces, and the selection in the folder."""

    algorithm: str | None = optional("which algorithm, of a folder with several")
    group: str | None = optional("which communicator group runs it, if several do")
    workload: str | None = optional(
        "prefix of the workload's traces in the folder, if it is ambiguous"
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
    time_limit_s: float = option(OptionType.FLOAT, 3600.0, "seconds after which a run is stopped")


@dataclass(frozen=True, slots=True)
class JobFolderOptions:
    """Options of the reader `astra-sim-job`."""

    workload: str | None = optional(
        "prefix of the workload's traces in the folder, if it is ambiguous"
    )


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """Values of the system.json for jobs without one; see `workloads.system.build_system`."""

    network: str = choice(NETWORKS, "which backend of ASTRA-sim simulates the job")
    all_reduce: str | None = optional("algorithm, of each dimension: ring (default), direct, ...")
    all_gather: str | None = optional("likewise")
    reduce_scatter: str | None = optional("likewise")
    all_to_all: str | None = optional("likewise")
    endpoint_delay: int | None = optional(
        "ns before every message of a native algorithm (default 10)", OptionType.INT
    )
    splits: int | None = optional("streams of a collective (default 1)", OptionType.INT)
    active_chunks: int | None = optional(
        "streams of a dimension at once (default 1)", OptionType.INT
    )
    optimization: str | None = choice(
        (None, "baseline", "localBWAware"),
        "how an all-reduce traverses dimensions (default: localBWAware)",
    )
    memory_bandwidth: float | None = optional(
        "local memory, as 1600GB/s: times of reductions, and of the roofline", OptionType.BANDWIDTH
    )
    peak_tflops: float | None = optional(
        "peak performance: computations take the time of the roofline", OptionType.FLOAT
    )


@dataclass(frozen=True, slots=True)
class JobOptions(SystemOptions):
    """Options of the simulator of jobs."""

    network: str | None = choice(  # type: ignore[assignment]
        (None, *NETWORKS),
        "which backend of ASTRA-sim simulates the job (default: the one that run.sh of its folder "
        "names, else congestion-aware, unless that aborts on the network)",
    )
    slots: str = choice(
        ("astra-sim", "unlimited"),
        "one node of each kind in flight a rank, as in ASTRA-sim, or any number",
    )
    queues: int = option(OptionType.INT, 1, "queues a dimension", minimum=1)
    rendezvous: bool = option(OptionType.BOOL, False, "messages wait until their receiver is ready")


@dataclass(frozen=True, slots=True)
class JobWriteOptions(SystemOptions):
    """Options of the writer `astra-sim` of jobs."""

    topology: str | None = optional(
        "the network, as ring:8 or switch:8?bandwidth=50GiB/s&latency=500ns "
        "(default: that of the job's own folder, else fully connected, 50GiB/s, 500ns)"
    )
    form: str = choice(
        ("workload", "custom"),
        "nodes of the job as nodes of a workload, or, of a job without collectives, "
        "as one custom algorithm: any number in flight at once",
    )
    host_times: str = choice(
        ("truncate", "carry"),
        "times of host nodes, which ASTRA-sim reads as whole microseconds: rounded down, or with "
        "the rest carried to the next host node of the rank",
    )


@dataclass(frozen=True, slots=True)
class NativeAlgorithmOptions:
    """Options of the synthesizers of ASTRA-sim's own algorithms."""

    endpoint_delay: int = option(OptionType.INT, 10, "ns before every message", minimum=0)
    memory_bandwidth: float | None = optional(
        "of local memory, as 1600GB/s (default: reductions take no time)", OptionType.BANDWIDTH
    )
    small_group: bool = option(
        OptionType.BOOL,
        False,
        "as for a group smaller than the system, in which the delay is 10 ns",
    )
    width: int = option(
        OptionType.INT, 0, "messages of direct at once (0: one for every other rank)", minimum=0
    )
    root: str = choice(("highest", "lowest"), "which rank is the root of the binary tree")

    @property
    def delay_ns(self) -> int:
        """Nanoseconds before every message: 10 in a small group, else `endpoint_delay`."""
        return SMALL_GROUP_NS if self.small_group else self.endpoint_delay


@dataclass(frozen=True, slots=True)
class Ns3WriteOptions:
    """The variant of ns-3 for which a network is written."""

    header: str = choice(
        ("astra-sim", SIMAI), "simai: the header of SimAI, with servers and their NVSwitches"
    )
    gpu_type: str = option(OptionType.TEXT, "H100", "kind of GPU that SimAI's header names")
