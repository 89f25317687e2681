"""Collectives of jobs that the tests read."""

from __future__ import annotations

import numpy as np

from hub_core.model import JobCollective, NodeKind, Workload


def collectives(workload: Workload, rank: int) -> list[tuple[str, int, int]]:
    """Return collective, bytes and ns of the collectives of a rank, in order."""
    nodes = workload.nodes
    rows = np.flatnonzero((nodes.rank == rank) & (nodes.kind == NodeKind.COLLECTIVE))
    return [
        (
            JobCollective(int(nodes.collective[row])).name,
            int(nodes.bytes[row]),
            int(nodes.duration_ns[row]),
        )
        for row in rows.tolist()
    ]
