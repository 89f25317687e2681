"""Small inputs for the conformance kit, the fuzzer and the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source, SourcePart

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


def workload_texts() -> Sequence[Source]:
    """Return a training step of three layers on eight GPUs."""
    return [source_of("layers.txt", WORKLOAD_TEXT)]


def flows() -> Sequence[Source]:
    """Return the flows of two collectives of two ranks."""
    return [source_of("ncclFlowModel_detailed_flows.csv", FLOWS)]


def source_of(name: str, text: str) -> Source:
    """Return a source in memory whose notes are dropped."""
    content = text.encode()
    part = SourcePart(name, lambda: content, None, len(content))
    return Source(name, (part,), report=lambda finding: None)
