"""Offers of this distribution to the hub: whole jobs as Chakra traces and documents; rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_job_traces.options import JobReadOptions

from hub_core.plugin_api import (
    AlgorithmPass,
    Check,
    Format,
    Layout,
    NoOptions,
    OptionType,
    Rule,
    RuleSet,
    Subject,
    WorkloadReader,
    WorkloadWriter,
    declare_rules,
    declare_similar_rules,
    hookimpl,
    option,
    optional,
)


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Factor of the durations, and the ranks to which it applies."""

    factor: float = option(
        OptionType.FLOAT, 1.5, "by which computations take longer", minimum=1e-6, maximum=1e6
    )
    ranks: str | None = optional("of these ranks alone, as 0,4-7: stragglers (default: all)")


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Number of pieces per collective."""

    pieces: int = option(
        OptionType.INT, 2, "collectives in place of one", minimum=2, maximum=1 << 16
    )


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """Maximum size of a bucket."""

    size: int = option(OptionType.SIZE, 25 << 20, "bytes of a bucket at most", minimum=1)


COLLHUB_PLUGIN_API = (1, 0)

# Name -> description and options of a pass.
_PASSES = {
    "scale-compute": ("computations of some ranks take longer or shorter", ScaleOptions),
    "drop-markers": ("leaves out markers, which take no time", NoOptions),
    "split-collectives": ("cuts collectives into several", SplitOptions),
    "fuse-collectives": ("joins small all-reduces into buckets", BucketOptions),
}

CHAKRA_WORKLOAD = Format(
    "chakra-workload",
    "Chakra execution traces of whole jobs, one file per rank",
    (".et",),
    layout=Layout.PREFIX,
)

CHAKRA_JSON_WORKLOAD = Format(
    "chakra-json-workload",
    "Chakra execution traces of whole jobs in JSON (chakra_jsonizer, feeder), one file per rank",
    (".json", ".json.gz"),
    layout=Layout.PREFIX,
)

DOCUMENT = Format(
    "workload-json",
    "JSON document of a whole job",
    (".json",),
    rb'"collhub/workload-\d+"',
    members=("schema", "num_ranks", "groups", "names", "nodes"),
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            DOCUMENT,
            "collhub_jobs.documents:read",
            samples="collhub_jobs.documents:documents",
        ),
        WorkloadReader(
            CHAKRA_WORKLOAD,
            "collhub_job_traces.reading:read",
            JobReadOptions,
            samples="collhub_jobs.documents:samples",
            claims="collhub_job_traces.reading:claims",
        ),
        WorkloadReader(
            CHAKRA_JSON_WORKLOAD,
            "collhub_job_traces.reading:read",
            JobReadOptions,
            samples="collhub_jobs.documents:json_samples",
            claims="collhub_job_traces.reading:claims",
        ),
    ]


@hookimpl
def collhub_consumers() -> Sequence[WorkloadWriter]:
    """Describe the writers."""
    return [
        WorkloadWriter(DOCUMENT, "collhub_jobs.documents:write"),
        WorkloadWriter(CHAKRA_WORKLOAD, "collhub_job_traces.writing:write"),
    ]


@hookimpl
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Describe the passes."""
    return [
        AlgorithmPass(
            name,
            description,
            f"collhub_jobs.passes:{name.replace('-', '_')}",
            options,
            Subject.WORKLOAD,
        )
        for name, (description, options) in _PASSES.items()
    ]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Describe the check of workloads."""
    return [
        Check(
            "workload",
            Subject.WORKLOAD,
            "dependencies, messages and collectives of whole jobs",
            "collhub_jobs.check:run",
        ),
        RuleSet("jobs", "findings in workloads", "collhub_jobs.plugin:list_rules"),
    ]


_RULES = (
    (
        "cycle",
        "A node waits for itself, directly or through other nodes.",
        "Dependencies form a cycle.",
        "Remove one of the dependencies.",
        "node 1 depends on node 2, and node 2 on node 1",
    ),
    (
        "peer",
        "The peer of a message is no other rank of the job.",
        "The trace is that of a larger job, or a rank sends to itself.",
        "Correct the peer, or give the files of all ranks.",
        "a send of rank 0 to rank 8 of 8 ranks",
    ),
    (
        "unmatched",
        "A message has no partner with equal ranks, tag and bytes.",
        "A rank is missing, or both sides state different sizes.",
        "Correct size and tag, or add the other message.",
        "a send of 64 bytes and a receive of 32 bytes",
    ),
    (
        "group",
        "A rank uses a process group to which it does not belong, or a group has one member.",
        "Lists of members differ from the calls.",
        "Correct the members of the group.",
        "an all-reduce of rank 3 in a group of the ranks 0 and 1",
    ),
    (
        "collectives-differ",
        "Ranks of one group issue different collectives, or in another order.",
        "A rank skips a step, or has other sizes.",
        "Issue the same collectives in the same order on all ranks of the group.",
        "an all-reduce of 4 bytes on rank 0 and of 8 bytes on rank 1",
    ),
    (
        "deadlock",
        "Ranks wait for one another for ever.",
        "Two groups are used in opposite orders.",
        "Issue collectives and messages in the same order on all ranks that share them.",
        "rank 0 calls groups A and B, rank 1 calls B and A",
    ),
)

_TRACES = (
    (
        "rank-files",
        "Files of ranks do not form one set.",
        "A file is missing, occurs twice, or has no rank in its name.",
        "Give the files of all ranks, or state with `-O ranks_missing=assume-same` that ranks"
        " without a file do the same as others.",
        "files of ranks 0 and 2",
    ),
    (
        "rank-range",
        "A rank is named that the job does not have.",
        "The option `ranks` is too small, or a list of group members is that of another job.",
        "Change `-O ranks`, or correct the list.",
        "`-O ranks=4` and a group of the ranks 0 to 7",
    ),
    (
        "ranks-assumed",
        "Ranks without a file are assumed to have the nodes of the next lower rank with a file.",
        "The option `ranks_missing=assume-same` was given.",
        "None is needed; give the files of all ranks for exact results.",
        "`-O ranks_missing=assume-same` and the files of 2 of 4 ranks",
    ),
    (
        "groups-assumed",
        "Process groups are taken to have the ranks whose nodes name them.",
        "No file states the members of the groups.",
        "State them with `-O groups`.",
        "collectives with `pg_name` and no list of its ranks",
    ),
    (
        "node",
        "A node is damaged or of an unknown type, has the id of another one, or waits for a node"
        " that does not exist.",
        "The file was changed, or its writer left nodes out.",
        "Correct the node that the error names.",
        "a dependency on node 99 of 8 nodes",
    ),
    (
        "invalid-counts",
        "A table of counts that is embedded in a job is incomplete, or no JSON list of integers.",
        "Metadata with its rows were removed or changed.",
        "Write the job again.",
        "table 1 without table 0",
    ),
    (
        "algorithm",
        "An algorithm that is embedded in a job is incomplete.",
        "Metadata with its files were removed or changed.",
        "Write the job again.",
        "algorithm 1 without algorithm 0",
    ),
)

_TEXTS = (
    (
        "simai",
        "The text is no workload of SimAI.",
        "A row has too few words, a number is missing, or the groups do not divide the GPUs.",
        "Correct the line that the message names.",
        "a row of 11 words",
    ),
    (
        "simccl",
        "The table is no list of flows of SimCCL.",
        "The header or a field is missing, an id occurs twice, or a parent ends at another rank.",
        "Correct the line that the message names, or write the file again.",
        "a flow from rank 1 to rank 1",
    ),
    (
        "simai-flows",
        "The text is no complete list of flows of SimAI.",
        "A word is missing, an id occurs twice, or a parent ends at another rank.",
        "Correct the line that the message names, or write the file again.",
        "a flow without its children",
    ),
    (
        "no-schedule",
        "The file has the results of a simulation, which are no schedule.",
        "Completion times of flows have no dependencies.",
        "Read the input of the simulation: `flow_output.txt`, or the workload text.",
        "`fct.txt` of ns-3",
    ),
    (
        "empty",
        "The file has no flows of the requested collective.",
        "It contains flows of other collectives.",
        "Name another collective with `-O collective` and `-O operation`.",
        "`-O collective=all-to-all` for a file with flows of an all-reduce",
    ),
    (
        "too-large",
        "The workload has more nodes than the limit.",
        "It is for many GPUs with many layers.",
        "Raise `-O max_nodes`, or read fewer GPUs.",
        "1000 GPUs with 10000 nodes each",
    ),
    (
        "pipeline-csv",
        "The table of actions is no schedule of a pipeline.",
        "An action is unknown, missing, doubled, or in an order that deadlocks.",
        "Write it with `_dump_csv` of PyTorch's schedule; the message names row and action.",
        "the action `0X0`",
    ),
)

_REQUESTS = (
    (
        "algorithm-does-not-fit",
        "The algorithm has steps on ranks outside of the group.",
        "an algorithm with relays",
    ),
    (
        "relay-outside",
        "The algorithm has steps on a rank outside of the group.",
        "an algorithm with relays",
    ),
    (
        "never-ends",
        "A node never finishes, so that the order in slots is not known.",
        "a job that deadlocks",
    ),
    ("no-algorithm", "A collective has no algorithm.", "a broadcast on a network of ASTRA-sim"),
    ("no-native", "ASTRA-sim has no native algorithm of this collective.", "a gather"),
    (
        "several-dimensions",
        "A collective of several dimensions has no single algorithm.",
        "`torus:4x4`",
    ),
    (
        "topology-size",
        "The network has another number of NPUs than the job has ranks.",
        "`ring:4` for 8 ranks",
    ),
    ("queues", "The number of queues per dimension is not possible here.", "`-O queues=2`"),
    (
        "degrees",
        "A degree of parallelism does not divide the ranks.",
        "`-O tensor=3` on 8 ranks",
    ),
    ("widths", "The text is no list of widths of layers.", "`-O bottom=512-x`"),
    ("schedule", "There is no schedule of pipelines of this name.", "`collhub pipeline 1f2b`"),
    (
        "chunks",
        "The schedule has another number of chunks per device.",
        "`-O chunks=3` for dualpipe",
    ),
    ("slices", "The schedule has no order for token slices.", "`1f1b -O slices=2`"),
    (
        "micro-batches",
        "The schedule needs another number of micro-batches.",
        "interleaving of 5 on 4 stages",
    ),
    (
        "two-directions",
        "The numbers cannot be split in two directions.",
        "chimera with 3 stages",
    ),
    ("memory", "No schedule has so few micro-batches in memory.", "`-O memory=1`"),
    ("invalid-mesh", "The text is no mesh of devices.", "`2x`"),
    (
        "invalid-spec",
        "The text is no sharding, or the move is not possible.",
        "a move to Partial",
    ),
    ("invalid-tensor", "The text is no tensor.", "`8x:float32`"),
    (
        "host-clash",
        "A device is on two hosts of the meshes.",
        "meshes with different sizes of hosts",
    ),
    ("too-many-tasks", "The move has too many parts.", "slices of single elements"),
    (
        "capture",
        "A node of the captured program has no equal in the graph.",
        "a call of a module",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the check of workloads, and of the readers of traces and texts."""
    return [
        *declare_rules("workloads, by `collhub verify`", _RULES),
        *declare_rules("Chakra traces of workloads, when they are read", _TRACES),
        *declare_rules("texts of SimAI and SimCCL, and CSV files of pipeline schedules", _TEXTS),
        *declare_similar_rules(
            "requests: jobs, tensor programs and shardings",
            _REQUESTS,
            cause="Options, job, network and schedule do not fit each other.",
            cure="Change the one that the message names.",
        ),
    ]
