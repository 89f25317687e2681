"""How long the steps of one rank alone take: reductions, copies and opaque work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.options import Model
from hub_core import NodeTable, NodeType
from hub_core.model import Algorithm, StepKind, message_bytes
from hub_core.network import link_times_ns

Int64Array = npt.NDArray[np.int64]

SHORTEST_NS = 1


def stated_durations_ns(nodes: NodeTable) -> Int64Array:
    """Stated durations, int64 per node; at least 1 ns, and 1 ns where none is stated, as in ASTRA-sim."""
    return np.maximum(nodes.duration_ns, SHORTEST_NS)


def local_durations_ns(
    algorithm: Algorithm, nodes: NodeTable, collective_bytes: int, model: Model
) -> Int64Array:
    """Durations, int64 per node, with the model's bandwidths for reductions and copies that state none."""
    durations = stated_durations_ns(nodes)
    charges = (
        (model.reduce_bytes_per_s, (StepKind.REDUCE, StepKind.RECV_REDUCE)),
        (model.copy_bytes_per_s, (StepKind.COPY,)),
    )
    local = (nodes.type == NodeType.COMP) & (nodes.step >= 0) & (nodes.duration_ns < 0)
    for bytes_per_s, charged in charges:
        if bytes_per_s is None:
            continue
        rows = np.flatnonzero(local)
        rows = rows[algorithm.steps.is_kind(*charged)[nodes.step[rows]]]
        counts = algorithm.steps.count[nodes.step[rows]]
        sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, counts)
        busy, _ = link_times_ns(np.asarray([bytes_per_s]), np.zeros(1), sizes)
        durations[rows] = np.maximum(busy, SHORTEST_NS)
    return durations
