"""Make jobs of steps: every rank computes, then the gradients of all ranks are reduced."""

from __future__ import annotations

import numpy as np

from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import NoOptions

RANKS, STEPS = 4, 2
COMPUTE_NS = 1000
GRADIENT_BYTES = 1 << 20


def generate(options: NoOptions) -> Workload:
    """Two nodes a step, each of which waits for the one before it on its rank."""
    per_rank = 2 * STEPS
    rows = np.arange(RANKS * per_rank)
    is_compute = rows % 2 == 0
    columns = {
        "rank": rows // per_rank,
        "kind": np.where(is_compute, int(NodeKind.COMPUTE), int(NodeKind.COLLECTIVE)),
        "duration_ns": np.where(is_compute, COMPUTE_NS, -1),
        "bytes": np.where(is_compute, -1, GRADIENT_BYTES),
        "collective": np.where(is_compute, -1, int(JobCollective.ALL_REDUCE)),
    }
    children = rows[rows % per_rank > 0]
    nodes = NodeColumns.from_columns(RANKS, columns, (children - 1, children))
    return Workload(nodes)
