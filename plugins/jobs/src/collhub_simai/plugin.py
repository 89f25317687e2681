"""Offers of this plugin to the hub: readers of workload text and of flows."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_simai.options import SIMAI, SIMCCL, SimaiOptions, SimcclOptions
from hub_core.plugin_api import Format, FormatReader, WorkloadReader, hookimpl

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


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            _WORKLOAD_TEXT,
            "collhub_simai.read_workload:read",
            SimaiOptions,
            samples="collhub_simai.samples:workload_texts",
        ),
        FormatReader(
            _FLOWS,
            "collhub_simai.read_flows:read",
            SimcclOptions,
            samples="collhub_simai.samples:flows",
        ),
    ]
