"""Formats of this plugin: names, suffixes and signatures, and the options of their readers."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import Format, Layout, OptionType, UnexportedFiles, option, optional

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


# Categories of the events of NCCL's profiler plugin, which are also lists of events.
_NCCL_EVENT = (
    rb'"cat"\s*:\s*"(?:COLL_API|P2P_API|GROUP_API|KERNEL_LAUNCH|GROUP|COLL|P2P|PROXY|NET|GPU)"'
)
KINETO_FORMAT = Format(
    KINETO,
    "profiles of torch.profiler (Kineto, Chrome traces), one file per rank",
    (".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
    # Files of 2021 begin with `computeProperties`; bare lists of events with an event.
    rb'"(?:traceEvents|deviceProperties|computeProperties|distributedInfo)"\s*:'
    rb"|\A\s*\[\s*\{(?![^{}]*" + _NCCL_EVENT + rb')[^{}]*"ph"\s*:\s*"'
    rb'|\A\s*\{\s*"schemaVersion"\s*:\s*1\b',
    Layout.PREFIX,
)
EXECUTION_TRACE_FORMAT = Format(
    EXECUTION_TRACE,
    "PyTorch execution traces: collectives without times, one file per rank",
    (".et.json", ".et.json.gz", ".json.gz"),
    rb'"schema"\s*:\s*"[0-9.]+(?:-chakra[0-9.]+)?"',
    Layout.PREFIX,
)
INSPECTOR_FORMAT = Format(
    INSPECTOR,
    "calls of NCCL with sizes and times, as JSON lines of its Inspector, one file a process",
    (".inspector.jsonl", ".inspector.jsonl.gz"),
    rb'\A\s*\{[^\n]*"(?:inspector_output_format_version|coll_perf|p2p_perf)"\s*:',
    Layout.PREFIX,
)
PROFILER_FORMAT = Format(
    PROFILER,
    "calls of NCCL with times, as the events of its example profiler plugin, one file a process",
    (".nccl-profile.txt", ".nccl-profile.txt.gz"),
    rb"\A\s*\[\s*\{[^{}]*" + _NCCL_EVENT,
    Layout.PREFIX,
)
NCCL_CALLS_FORMAT = Format(
    NCCL_CALLS,
    "calls in logs of NCCL and RCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL), without times",
    (".nccl.log", ".nccl.log.gz"),
    rb"[\w.\-]+:\d+:\d+ \[-?\d+\][^\n]{0,300}? NCCL (?:INFO|WARN) ",
    Layout.PREFIX,
)
DEEPSPEED_FORMAT = Format(
    DEEPSPEED,
    "calls in logs of DeepSpeed's communication logger, with rounded sizes, of rank 0",
    (".deepspeed.log", ".deepspeed.log.gz"),
    rb"comm op: [^\n]{1,200}?\| time \(ms\): |Comm\. Op +Message Size +Count +Total Latency\(ms\)",
)
_NSYS_EXPORT = "export the report: nsys export --type sqlite REPORT.nsys-rep"
UNEXPORTED_NSYS = (
    UnexportedFiles(
        (".nsys-rep", ".qdrep"),
        "a report of Nsight Systems, which only nsys can read",
        _NSYS_EXPORT,
    ),
    UnexportedFiles(
        (),
        "a table of nsys stats, which has no single operations",
        _NSYS_EXPORT,
        rb'\A\s*"?Time ?\(%\)"?,',
    ),
)
"""Files of Nsight Systems that no reader reads: reports, and their summaries."""
NSYS_FORMAT = Format(
    NSYS,
    "SQLite exports of Nsight Systems (nsys export --type sqlite), one file per rank or for "
    "several",
    (".sqlite",),
    rb"\ASQLite format 3\x00",
    Layout.PREFIX,
    unexported=UNEXPORTED_NSYS,
)
NSYS_PARQUET_FORMAT = Format(
    NSYS_PARQUET,
    "folders of Parquet files of Nsight Systems (nsys export --type parquetdir)",
    (".parquet",),
    rb"\APAR1",
    Layout.FOLDER,
)
CCL_BENCH_FORMAT = Format(
    CCL_BENCH,
    "a folder of CCL-Bench: workload-card.yaml and the traces of its ranks",
    (".yaml", ".yml"),
    rb"(?m)^(?:Model-executor|metric_source)\s*:",
    Layout.FOLDER,
)
