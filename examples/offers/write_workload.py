"""Write jobs as text: a line a node, `RANK compute NANOSECONDS` or `RANK all-reduce BYTES`."""

from __future__ import annotations

import numpy as np

from hub_core import Loss, UsageError
from hub_core.model import JobCollective, NodeKind, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """The nodes of a rank become a chain. Raises `UsageError` for nodes that have no line."""
    nodes = workload.nodes
    is_compute = nodes.kind == NodeKind.COMPUTE
    is_all_reduce = (nodes.collective == JobCollective.ALL_REDUCE) & (nodes.group < 0)
    if not np.all(is_compute | is_all_reduce):
        message = "the format holds computations and all-reduces of all ranks alone"
        raise UsageError(message, cure="write another format")
    names = np.where(is_compute, "compute", "all-reduce")
    numbers = np.maximum(np.where(is_compute, nodes.duration_ns, nodes.bytes), 0)
    rows = zip(nodes.rank.tolist(), names.tolist(), numbers.tolist(), strict=True)
    lines = ["example-job 1", *(f"{rank} {name} {number}" for rank, name, number in rows), ""]
    lost = Loss("dependencies", "all", "the nodes of a rank run one after the other")
    return WriteResult([Artifact("", "\n".join(lines).encode("utf-8"))], [lost])
