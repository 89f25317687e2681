"""How long the steps of one rank alone take: reductions, copies and opaque work."""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.simulating.timing_model import TimingModel
from hub_core import NodeTable, NodeType
from hub_core.model import Algorithm, Int64Array, StepKind, message_bytes
from hub_core.network import link_times_ns

# ASTRA-sim turns a duration of 0 into a cycle.
SHORTEST_NS = 1


def stated_durations_ns(nodes: NodeTable) -> Int64Array:
    """Stated durations, int64 per node; at least 1 ns, and 1 ns where none is stated."""
    return np.maximum(nodes.duration_ns, SHORTEST_NS)


def local_durations_ns(
    algorithm: Algorithm, nodes: NodeTable, collective_bytes: int, model: TimingModel
) -> Int64Array:
    """Durations, int64 per node, by the model's bandwidths where none is stated."""
    durations = stated_durations_ns(nodes)
    charges = (
        (model.reduce_bytes_per_s, (StepKind.REDUCE, StepKind.RECV_REDUCE)),
        (model.copy_bytes_per_s, (StepKind.COPY,)),
    )
    # What is stated was measured or modelled by somebody, so it comes before any bandwidth.
    is_local = (nodes.type == NodeType.COMP) & (nodes.step >= 0)
    rows = np.flatnonzero(is_local & (nodes.duration_ns < 0))
    steps = algorithm.steps
    for bytes_per_s, kinds in charges:
        if bytes_per_s is None:
            continue
        is_charged = steps.is_kind(*kinds)[nodes.step[rows]]
        charged = rows[is_charged]
        counts = steps.count[nodes.step[charged]]
        sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, counts)
        durations[charged] = _work_ns(sizes, bytes_per_s)
    return durations


def _work_ns(sizes: Int64Array, bytes_per_s: float) -> Int64Array:
    """Time of work on so many bytes, by the rounding of links without latency."""
    busy, _ = link_times_ns(np.asarray([bytes_per_s]), np.zeros(1), sizes)
    return np.maximum(busy, SHORTEST_NS)
