"""Offers of this plugin to the hub: readers of workload text and flows, options and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    FormatReader,
    OptionType,
    Source,
    SourcePart,
    WorkloadReader,
    choice,
    hookimpl,
    option,
    optional,
)

SIMAI, SIMCCL, SIMAI_FLOWS = "simai", "simccl", "simai-flows"


@dataclass(frozen=True, slots=True)
class SimaiOptions:
    """Number of GPUs and of training steps, and the limit of the workload."""

    gpus: int | None = optional(
        "number of GPUs in place of all_gpus; groups of data parallelism change with it",
        OptionType.INT,
        minimum=1,
    )
    passes: int = option(OptionType.INT, 1, "training steps, one after the other", minimum=1)
    max_nodes: int = option(
        OptionType.INT, 1 << 21, "maximum number of nodes of the workload", minimum=1
    )


@dataclass(frozen=True, slots=True)
class SimcclOptions:
    """Collective of the flows."""

    collective: str | None = choice(
        (None, "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"),
        "the collective of the file that is read (default: the only one)",
    )
    operation: int | None = optional(
        "the number of the operation (column op; default: the first)", OptionType.INT, minimum=0
    )


@dataclass(frozen=True, slots=True)
class SimaiFlowOptions:
    """Collective of the flows."""

    layer: int | None = optional(
        "the number of the layer whose first collective is read (default: of the first flow)",
        OptionType.INT,
        minimum=0,
    )


WORKLOAD_TEXT = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 \
checkpoints: 0 checkpoint_initiates: 0
3
grad_gather -1 1 NONE 0 1 NONE 0 1 ALLGATHER 2097152 100
attention -1 556000 ALLREDUCE 16777216 400000 ALLREDUCE 16777216 300000 REDUCESCATTER 8388608 100
moe -1 100000 ALLTOALL_EP 1048576 100000 ALLTOALL_EP 1048576 1 ALLREDUCE_DP_EP 4194304 100
"""

FLOWS = """\
collective,op,data_size,algorithm,protocol,channel_id,flow_id,src,dest,flow_size,chunk_id,\
chunk_count,conn_type,parent_flow_ids,prev_flow_ids
AllGather,0,2048,1,2,0,0,0,1,1024,0,2,NVLINK,,
AllGather,0,2048,1,2,0,1,1,0,1024,1,2,NVLINK,,
AllReduce,1,2048,1,2,0,0,0,1,1024,0,2,NET,,
AllReduce,1,2048,1,2,0,1,1,0,1024,0,2,NET,0,
"""

FLOW_TEXT = """\
4
0 0 1 1024 0 0 2 RING 0 3 1 1 100 1 1 0 1 3 0 0 3 0 0
1 1 0 1024 0 0 2 RING 0 3 1 100 100 1 0 0 1 2 0 0 3 0 0
2 0 1 1024 0 1 2 RING 0 3 1 1 100 1 1 1 1 0 0 0 3 0 500
3 1 0 1024 0 1 2 RING 0 3 1 100 100 1 0 1 0 0 0 0 3 0 500
"""


def workload_texts() -> Sequence[Source]:
    """Return a training step of three layers on eight GPUs."""
    return [source_of("layers.txt", WORKLOAD_TEXT)]


def flows() -> Sequence[Source]:
    """Return the flows of two collectives of two ranks."""
    return [source_of("ncclFlowModel_detailed_flows.csv", FLOWS)]


def flow_texts() -> Sequence[Source]:
    """Return the flows of an all-reduce of two ranks, with delays before the second half."""
    return [source_of("flow_output.txt", FLOW_TEXT)]


def source_of(name: str, text: str) -> Source:
    """Create a source in memory with one file, whose content is `text` in UTF-8.

    `name`: of the source and the file. Findings that are reported to the source are
    dropped.
    """
    content = text.encode()
    part = SourcePart(name, lambda: content, None, len(content))
    return Source(name, (part,), report=lambda finding: None)


COLLHUB_PLUGIN_API = (1, 0)

_WORKLOAD_TEXT = Format(
    SIMAI,
    "workload text of AICB for SimAI and ASTRA-sim 1: layers with computations and collectives",
    (".aicb.txt",),
    rb"\A\s*(?:DATA|MODEL|MICRO|HYBRID_[A-Z_]+|DISTRIBUTED_INFERENCE)\b[^\n]*\n\s*\d+\s*\n",
)
_FLOWS = Format(
    SIMCCL,
    "flows of collectives that SimCCL writes (ncclFlowModel_detailed_flows.csv)",
    (".flows.csv",),
    rb"\A\s*collective,op,data_size,algorithm,protocol,channel_id,flow_id,",
)
_FLOW_TEXT = Format(
    SIMAI_FLOWS,
    "flows of collectives that SimAI writes for a replay (flow_output.txt)",
    (".flows.txt",),
    # The number of flows, and numbers up to the kind of connection; or flow completion times.
    rb"\A\s*(?:\d+\s*\n)?\s*(?:\d+[ \t]+){7}[A-Z][A-Z_]*[ \t]+\d"
    rb"|\A[0-9a-f]{8} [0-9a-f]{8} (?:\d+ ){5}\d+(?: \d+)?\r?\n",
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            _WORKLOAD_TEXT,
            "collhub_simai.read_workload:read",
            SimaiOptions,
            samples="collhub_simai.plugin:workload_texts",
        ),
        FormatReader(
            _FLOWS,
            "collhub_simai.read_flows:read",
            SimcclOptions,
            samples="collhub_simai.plugin:flows",
        ),
        FormatReader(
            _FLOW_TEXT,
            "collhub_simai.read_flow_text:read",
            SimaiFlowOptions,
            samples="collhub_simai.plugin:flow_texts",
        ),
    ]
