"""Time a job as if messages took no time: the stated durations of each rank, one after another."""

from __future__ import annotations

import numpy as np

from hub_core.plugin_api import NoOptions, WorkloadRequest, WorkloadTimes


def simulate(request: WorkloadRequest, options: NoOptions) -> WorkloadTimes:
    """Return what each rank computes; nothing of it is exposed communication."""
    nodes = request.workload.nodes
    stated = np.maximum(nodes.duration_ns, 0)
    totals = [int(stated[nodes.rank == rank].sum()) for rank in range(nodes.num_ranks)]
    return WorkloadTimes(tuple(totals), rank_exposed_ns=(0,) * nodes.num_ranks, slots="serial")
