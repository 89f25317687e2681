"""Write jobs as text: a line per node, `RANK compute NANOSECONDS` or `RANK all-reduce BYTES`."""

from __future__ import annotations

import numpy as np

from hub_core import Loss, UsageError
from hub_core.model import NODE_DEFAULTS, JobCollective, NodeKind, Workload
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
    return WriteResult([Artifact("", "\n".join(lines).encode("utf-8"))], _losses(workload))


def _losses(workload: Workload) -> list[Loss]:
    """List the parts of the job that reading the text back does not restore."""
    losses = [Loss("dependencies", "all", "the nodes of a rank run one after the other")]
    is_compute = workload.nodes.kind == NodeKind.COMPUTE
    # A line has the duration of a computation, and the bytes of an all-reduce.
    unwritten = dict.fromkeys(("rank", "kind", "collective"), np.False_)
    unwritten |= {"duration_ns": ~is_compute, "bytes": is_compute}
    columns = {column: getattr(workload.nodes, column) for column in NODE_DEFAULTS}
    lost = [
        column
        for column, values in columns.items()
        if np.any((values != NODE_DEFAULTS[column]) & unwritten.get(column, np.True_))
    ]
    lost += [
        part
        for part in ("names", "groups", "extras", "extensions", "algorithms")
        if getattr(workload, part)
    ]
    return losses + [
        Loss(part.replace("_", " "), "all", "a line has no word for it") for part in lost
    ]
