"""Offers of this plugin: readers of profiles and traces, the command `profile`, and rules."""

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
    Rule,
    RuleSet,
    WorkloadReader,
    WorkloadSimulator,
    declare_rules,
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
            "collhub_pytorch.plugin:list_rules",
        )
    ]


_FILES = (
    (
        "profile-record",
        "An event has a value of another type or lacks a value.",
        "The profiler was stopped within an event, or the file was changed by hand.",
        "Record the file again, and copy it completely.",
        'an event with `"args": 3`',
    ),
    (
        "not-json",
        "The text is no JSON.",
        "The file is damaged, or belongs to another tool.",
        "Record the file again, and copy it completely.",
        '`{"traceEvents": [}`',
    ),
    (
        "truncated",
        "The JSON document of the file is incomplete.",
        "The job was killed while it wrote the file, or the copy is incomplete.",
        "Record the file again, and copy it completely.",
        '`{"traceEvents": [{"name":`',
    ),
    (
        "format",
        "The file or folder is not of the recorded format.",
        "The name ends like that of a profile, but the content is something else.",
        "Name the format with `--from`, or give the file that the profiler wrote.",
        "a JSON object without `schema`, read as an execution trace",
    ),
    (
        "empty",
        "The file has no event, record or kernel that the reader uses.",
        "The profile was taken outside of the step, or logging was disabled.",
        "Record a step with CPU and CUDA activities, or enable the log of calls.",
        "a profile of Kineto with only metadata",
    ),
    (
        "too-large",
        "A table, archive or log exceeds the limit of the reader, or a number needs more than "
        "64 bits.",
        "The recording covers many steps.",
        "Record fewer steps, or correct the number; the message states the limit.",
        "a table of kernels with more rows than the limit",
    ),
    (
        "sqlite",
        "The SQLite file is damaged.",
        "The export was interrupted.",
        "Export it again: `nsys export --type sqlite`.",
        "a file of which only the first page is present",
    ),
    (
        "view",
        "A table of the SQLite file is a view or another object.",
        "The file was prepared by hand; views could compute without bound.",
        "Export it again with `nsys export --type sqlite`.",
        "`CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL`",
    ),
    (
        "parquet",
        "A Parquet file is damaged.",
        "The export was interrupted.",
        "Export it again: `nsys export --type parquetdir`.",
        "a file `StringIds.parquet` without its last page",
    ),
    (
        "profile",
        "Facts about the recording that the reader had to assume.",
        "The file does not contain all data.",
        "No action is needed; the note states the assumption.",
        "records that occur twice and are read once",
    ),
)

_JOBS = (
    (
        "mixed-formats",
        "The files of one job have different formats.",
        "A folder contains profiles and execution traces.",
        "Name files of one format.",
        "`rank0.json` of Kineto and `rank1.sqlite`",
    ),
    (
        "mixed-jobs",
        "The files belong to jobs with different numbers of ranks.",
        "A folder contains several runs.",
        "Name the files of one job.",
        "one file with world_size 4, one with 8",
    ),
    (
        "rank-twice",
        "Two files are of the same rank.",
        "A folder contains several runs or steps.",
        "Name one file per rank.",
        "two profiles whose distributedInfo states rank 0",
    ),
    (
        "rank-range",
        "A rank is not below the number of ranks, or there are too many ranks.",
        "The file states a wrong world_size, or the bandwidths imply an impossible number of "
        "ranks.",
        "Correct the number of ranks.",
        "rank 8 of a job with world_size 8",
    ),
    (
        "ranks",
        "The number of ranks cannot be derived, or lines contradict each other.",
        "The log has no bandwidths, or lines of jobs of different sizes.",
        "Give the log of one job, with an all-reduce, all-gather, reduce-scatter or all-to-all of "
        "some KB.",
        "a DeepSpeed log with bus bandwidth factors of 4 and 8 ranks",
    ),
    (
        "missing-ranks",
        "Ranks of the job have no file, and their nodes cannot be derived from the other ranks.",
        "Only some ranks were profiled.",
        "Give the files of all ranks, or `-O ranks_missing=assume-same`.",
        "one of two profiles of a pipeline-parallel job",
    ),
    (
        "group",
        "A process group has no valid list of ranks, or a rank uses a group of other ranks.",
        "The profiler shortens long lists, or groups were created after the recording.",
        "Give the files of all ranks, recorded with the same version.",
        "Process Group Ranks: `[0, 1, ...]`",
    ),
    (
        "communicator",
        "Records of one communicator contradict each other.",
        "Files of several runs were mixed, or records lack the identity of the communicator.",
        "Give files of one run.",
        "two ranks with number 0 in one communicator",
    ),
    (
        "collective-mismatch",
        "Ranks of a group call different collectives at the same position.",
        "Files of different steps were mixed, or the job has this error.",
        "Give files of the same step of all ranks.",
        "call 3 is an all-reduce on rank 0 and an all-gather on rank 1",
    ),
    (
        "collective-missing",
        "A rank has fewer calls of a group than the others.",
        "The recording of a rank ended earlier.",
        "Record whole steps on all ranks, or name a step that all have.",
        "5 calls on rank 0, 4 calls on rank 1",
    ),
    (
        "deadlock",
        "A node of the job never starts.",
        "Files of different steps were mixed, so that ranks wait for each other.",
        "Give files of the same step of all ranks.",
        "rank 0 waits for rank 1, and rank 1 for rank 0",
    ),
    (
        "clocks",
        "The clocks of the ranks cannot be aligned.",
        "Ranks share no collective, or the times of one collective contradict each other.",
        "Give all ranks of a group, or `-O clocks=stated` if all ranks have one clock.",
        "two profiles without a common process group",
    ),
    (
        "no-times",
        "A node has no measured time.",
        "The recording contains calls but no times.",
        "Record the GPU as well, or predict times: `--machine`.",
        "an execution trace, which has no times",
    ),
    (
        "no-issuer",
        "Collectives of the GPU have no operator that issued them.",
        "The CPU activity was not recorded.",
        "Record with CPU and CUDA activities.",
        "a NCCL kernel without `c10d::allreduce_`",
    ),
    (
        "step",
        "The step does not exist, or issues no work.",
        "The number is wrong, or the profiler recorded another range.",
        "Name a step that the message lists.",
        "`-O step=7` for a profile with the steps 1 to 3",
    ),
    (
        "not-predicted",
        "The time of a collective is not predicted by the machine.",
        "The profile of the machine covers other sizes, ranks or collectives.",
        "Choose another machine, or give a topology.",
        "an all-to-all of 3 ranks on a machine measured with 8",
    ),
)

_CARDS = (
    (
        "ccl-bench",
        "The card describes no network or workload that can be read.",
        "A member is missing, or several cards are in the folder.",
        "Correct the card; the message names the member.",
        "a card without `devices`",
    ),
    (
        "no-traces",
        "No traces are next to the card.",
        "Only the card was downloaded.",
        "Place the traces in the folder of the card.",
        "a folder with only `card.yaml`",
    ),
)

_PREDICTIONS = (
    (
        "assumption",
        "A predicted time assumes a property that the job does not state.",
        "The job does not state it, and the model of the machine needs it.",
        "State the property by the option that the message names.",
        "ranks per node",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules(
            "profiles, traces and logs of jobs (PyTorch, NCCL, DeepSpeed, Nsight Systems)", _FILES
        ),
        *declare_rules("jobs that are built from profiles and logs", _JOBS),
        *declare_rules("folders of CCL-Bench", _CARDS),
        *declare_rules("jobs whose times a machine predicts", _PREDICTIONS),
    ]
