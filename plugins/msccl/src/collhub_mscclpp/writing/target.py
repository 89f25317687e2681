"""MSCCL++ as target of a synthesis: resources of an algorithm as an execution plan."""

from __future__ import annotations

from collhub_mscclpp.options import PlanWriteOptions
from collhub_mscclpp.writing.write import build_draft, count_chunks, write_thread_blocks
from hub_core.model import Algorithm
from hub_core.network import Topology
from hub_core.plugin_api import RuntimeFit


def fit(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit:
    """Return the resources of the plan of an algorithm on a network; raises as the writer does."""
    draft = build_draft(algorithm, PlanWriteOptions(max_size=collective_bytes), topology)
    counts = [[one.count_operations() for one in row] for row in write_thread_blocks(draft)]
    peers = [sum(map(len, table.peers.values())) + len(table.groups) for table in draft.tables]
    return RuntimeFit(
        blocks=max(map(len, counts)),
        operations=max(map(sum, counts)),
        block_operations=max((max(row, default=0) for row in counts), default=0),
        channels=max(peers),
        units=int(count_chunks(draft)[:, :2].max()),
        max_bytes=collective_bytes,
    )
