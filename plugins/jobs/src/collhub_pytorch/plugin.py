"""Offers of this plugin to the hub: readers of profiles and traces, the command `profile`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pytorch.formats import (
    CCL_BENCH_FORMAT,
    DEEPSPEED_FORMAT,
    EXECUTION_TRACE_FORMAT,
    INSPECTOR_FORMAT,
    KINETO_FORMAT,
    NCCL_CALLS_FORMAT,
    NSYS_FORMAT,
    NSYS_PARQUET_FORMAT,
    PROFILER_FORMAT,
    ClockOptions,
    DeepSpeedOptions,
    JobMachineOptions,
    NsysOptions,
    ProfileOptions,
    RankOptions,
)
from hub_core.plugin_api import (
    Command,
    RuleSet,
    WorkloadReader,
    WorkloadSimulator,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            KINETO_FORMAT,
            "collhub_pytorch.kineto.read:read",
            ProfileOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.samples:profiles",
        ),
        WorkloadReader(
            EXECUTION_TRACE_FORMAT,
            "collhub_pytorch.execution_trace:read",
            RankOptions,
            samples="collhub_pytorch.samples:execution_traces",
        ),
        WorkloadReader(
            INSPECTOR_FORMAT,
            "collhub_pytorch.nccl.read:read_inspector",
            ClockOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.samples:inspector_lines",
        ),
        WorkloadReader(
            PROFILER_FORMAT,
            "collhub_pytorch.nccl.read:read_profiler",
            ClockOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.samples:profiler_events",
        ),
        WorkloadReader(
            NCCL_CALLS_FORMAT,
            "collhub_pytorch.nccl.read:read_log",
            RankOptions,
            samples="collhub_pytorch.samples:log_lines",
            claims="collhub_pytorch.nccl.read:has_calls",
        ),
        WorkloadReader(
            DEEPSPEED_FORMAT,
            "collhub_pytorch.nccl.read:read_deepspeed",
            DeepSpeedOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.samples:deepspeed_logs",
        ),
        WorkloadReader(
            NSYS_FORMAT,
            "collhub_pytorch.nsys.read:read",
            NsysOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.nsys.samples:exports",
        ),
        WorkloadReader(
            NSYS_PARQUET_FORMAT,
            "collhub_pytorch.nsys.read:read_folder",
            NsysOptions,
            lines="collhub_pytorch.report:lines",
            samples="collhub_pytorch.nsys.samples:parquet_exports",
        ),
        WorkloadReader(
            CCL_BENCH_FORMAT,
            "collhub_pytorch.ccl_bench:read",
            ProfileOptions,
            lines="collhub_pytorch.ccl_bench:lines",
            samples="collhub_pytorch.ccl_bench:samples",
            network="collhub_pytorch.ccl_bench:network",
        ),
    ]


@hookimpl
def collhub_consumers() -> Sequence[WorkloadSimulator]:
    """Describe the simulator of jobs on machines."""
    return [
        WorkloadSimulator(
            "machine",
            "jobs with the times of a measured library, and savings by bucket sizes and overlap",
            "collhub_pytorch.machine:simulate",
            JobMachineOptions,
            has_machines=True,
        )
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "profile",
            "Say where a PyTorch job waits, and what would save it time.",
            "collhub_pytorch.command:profile",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of the readers."""
    return [
        RuleSet(
            "profiles",
            "findings in profiles, traces and logs of jobs",
            "collhub_pytorch.rules:list_rules",
        )
    ]
