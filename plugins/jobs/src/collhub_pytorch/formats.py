"""Formats of this plugin, with their names, suffixes and signatures."""

from __future__ import annotations

from collhub_pytorch.options import (
    CCL_BENCH,
    DEEPSPEED,
    EXECUTION_TRACE,
    INSPECTOR,
    KINETO,
    NCCL_CALLS,
    NSYS,
    NSYS_PARQUET,
    PROFILER,
)
from hub_core.plugin_api import Format, Layout

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
NSYS_FORMAT = Format(
    NSYS,
    "SQLite exports of Nsight Systems (nsys export --type sqlite), one file per rank or for "
    "several",
    (".sqlite",),
    rb"\ASQLite format 3\x00",
    Layout.PREFIX,
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
