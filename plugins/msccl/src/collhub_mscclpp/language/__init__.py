"""The language of `mscclpp.language`, implemented anew from its description.

Programs record operations of thread blocks; the plan of them is checked by the rules of the
executor when it is read.
"""

from collhub_mscclpp.language.channels import MemoryChannel, PortChannel, SwitchChannel
from collhub_mscclpp.language.program import (
    JSON,
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveProgram,
    ReduceScatter,
    SendRecv,
    TestCollective,
)
from collhub_mscclpp.language.ranks import LoopIterationContext, Rank, Semaphore
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
    "Collective", "CollectiveProgram", "LoopIterationContext", "MemoryChannel", "PortChannel",
    "Rank", "ReduceOperationType", "ReduceScatter", "ReplicationPolicy", "Semaphore", "SendRecv",
    "SwitchChannel", "SyncType", "TestCollective", "ThreadBlockGroup",
]  # fmt: skip
