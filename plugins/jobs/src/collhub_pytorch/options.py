"""Names of the formats of this plugin, and the options of their readers."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional

# Names of the formats, and of the producers in the provenance of workloads.
KINETO, EXECUTION_TRACE = "kineto", "pytorch-et"
NSYS, NSYS_PARQUET, CCL_BENCH = "nsys", "nsys-parquet", "ccl-bench"
INSPECTOR, PROFILER, NCCL_CALLS = "nccl-inspector", "nccl-profiler", "nccl-calls"
DEEPSPEED = "deepspeed-log"


@dataclass(frozen=True, slots=True)
class RankOptions:
    """Treatment of ranks without a file, and of ranks whose collectives differ."""

    ranks_missing: str = option(
        OptionType.TEXT,
        "refuse",
        "ranks without a file: refuse, or assume that they do the same as a rank with one",
        choices=("refuse", "assume-same"),
    )
    mismatches: str = option(
        OptionType.TEXT,
        "refuse",
        "collectives that differ between ranks: refuse, or keep them (with clocks as stated), as"
        " collhub diagnose does",
        choices=("refuse", "keep"),
    )


@dataclass(frozen=True, slots=True)
class DeepSpeedOptions:
    """Treatment of ranks without a file: only rank 0 writes a log."""

    ranks_missing: str = option(
        OptionType.TEXT,
        "assume-same",
        "ranks other than 0: assume that they do the same, or refuse",
        choices=("refuse", "assume-same"),
    )


@dataclass(frozen=True, slots=True)
class ClockOptions(RankOptions):
    """Alignment of the clocks of the ranks; `clock_residual` in seconds."""

    clocks: str = option(
        OptionType.TEXT,
        "align",
        "align the clocks of the ranks by the ends of collectives, or take them as stated",
        choices=("align", "stated"),
    )
    clock_residual: float | None = option(
        OptionType.TIME,
        None,
        "the most by which ends of one collective may differ after alignment"
        " (default: 1ms, 100ms without a device)",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class NsysOptions(ClockOptions):
    """Alignment of the clocks of the ranks, classes of idle time."""

    kernel_delay_factor: float = option(
        OptionType.FLOAT,
        1.0,
        "idle gaps of a stream below 30 ns times this count as the usual delay between two kernels",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class ProfileOptions(NsysOptions):
    """Selection of the iteration, alignment of the clocks of the ranks, classes of idle time."""

    step: int | None = option(
        OptionType.INT, None, "only this ProfilerStep (default: all of the profile)", minimum=0
    )


@dataclass(frozen=True, slots=True)
class JobMachineOptions:
    """Machine, and placement of the ranks."""

    machine: str | None = optional("profile: the name of a shipped one, as h100, or its document")
    ranks_per_node: int | None = option(
        OptionType.INT,
        None,
        "ranks of the job on each node (default: the GPUs of a node)",
        minimum=1,
    )
    changes: bool = option(
        OptionType.BOOL, True, "also time the job with other bucket sizes and with overlap"
    )
