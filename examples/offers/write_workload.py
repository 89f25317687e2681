"""Write jobs as text: a line per node, `RANK compute NANOSECONDS` or `RANK all-reduce BYTES`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core import Loss, UsageError
from hub_core.columns import Int64Array
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """Write the nodes of a rank as a chain. Raises `UsageError` for nodes that have no line."""
    nodes = workload.nodes
    is_compute = nodes.kind == NodeKind.COMPUTE
    is_all_reduce = (nodes.collective == JobCollective.ALL_REDUCE) & (nodes.group < 0)
    if not np.all(is_compute | is_all_reduce):
        message = "the format has only computations and all-reduces of all ranks"
        raise UsageError(message, cure="write another format")
    names = np.where(is_compute, "compute", "all-reduce")
    numbers = np.maximum(np.where(is_compute, nodes.duration_ns, nodes.bytes), 0)
    rows = zip(nodes.rank.tolist(), names.tolist(), numbers.tolist(), strict=True)
    lines = ["example-job 1", *(f"{rank} {name} {number}" for rank, name, number in rows), ""]
    return WriteResult(
        [Artifact("", "\n".join(lines).encode("utf-8"))], _list_losses(workload, numbers)
    )


def _list_losses(workload: Workload, numbers: Int64Array) -> list[Loss]:
    """List the parts in which a job that is read from the text differs from `workload`.

    `numbers`: the last word of every line.
    """
    is_compute = workload.nodes.kind == NodeKind.COMPUTE
    columns: dict[str, npt.ArrayLike] = {
        "rank": workload.nodes.rank,
        "kind": workload.nodes.kind,
        "duration_ns": np.where(is_compute, numbers, -1),
        "bytes": np.where(is_compute, -1, numbers),
        "collective": np.where(is_compute, -1, JobCollective.ALL_REDUCE),
    }
    nodes = NodeColumns.from_columns(workload.num_ranks, columns)
    read_back = Workload(nodes, provenance=workload.provenance)
    losses = [Loss("dependencies", "all", "the nodes of a rank run one after the other")]
    for part in workload.differences(read_back):
        # Dependencies are declared above; their columns are `data_*` and `control_*`.
        if not part.startswith(("data_", "control_")):
            losses.append(Loss(part.replace("_", " "), "all", "a line has no word for it"))
    return losses
