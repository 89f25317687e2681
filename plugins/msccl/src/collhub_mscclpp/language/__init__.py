"""The language of `mscclpp.language`, reimplemented from its description.

A program records operations of thread blocks. The reader checks the resulting plan by the rules of
the executor.
"""

from collhub_mscclpp.language.channels import (
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    Rank,
    Semaphore,
    SwitchChannel,
)
from collhub_mscclpp.language.program import (
    JSON,
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveProgram,
    MSCCLPPProgram,
    ReduceScatter,
    SendRecv,
    TestCollective,
)
from collhub_mscclpp.language.recorded import (
    Buffer,
    BufferType,
    Chunk,
    ReduceOperationType,
    ReplicationPolicy,
    SyncType,
    ThreadBlockGroup,
)

__all__ = [
    "JSON", "AlgoSpec", "AllGather", "AllReduce", "AllToAll", "Buffer", "BufferType", "Chunk",
    "Collective", "CollectiveProgram", "LoopIterationContext", "MSCCLPPProgram", "MemoryChannel",
    "PortChannel", "Rank", "ReduceOperationType", "ReduceScatter", "ReplicationPolicy", "Semaphore",
    "SendRecv", "SwitchChannel", "SyncType", "TestCollective", "ThreadBlockGroup",
]  # fmt: skip
