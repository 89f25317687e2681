"""Durations of computations: reductions, copies and opaque work."""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.simulating.timing_model import TimingModel
from hub_core import NodeTable, NodeType
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, message_bytes
from hub_core.schedules import work_times_ns

# ASTRA-sim turns a duration of 0 into one cycle.
SHORTEST_NS = 1


def get_trace_durations_ns(nodes: NodeTable) -> Int64Array:
    """Return the durations of the traces, int64 per node; at least 1 ns, also if missing."""
    return np.maximum(nodes.duration_ns, SHORTEST_NS)


def compute_durations_ns(
    algorithm: Algorithm, nodes: NodeTable, collective_bytes: int, model: TimingModel
) -> Int64Array:
    """Return durations, int64 per node; missing ones are computed from the model's bandwidths."""
    durations = get_trace_durations_ns(nodes)
    is_local = (nodes.type == NodeType.COMP) & (nodes.step >= 0)
    rows = np.flatnonzero(is_local & (nodes.duration_ns < 0))
    steps, unit_count = algorithm.steps, algorithm.collective.unit_count
    sizes = message_bytes(collective_bytes, unit_count, steps.count)
    times = work_times_ns(steps, sizes, model.reduce_bytes_per_s, model.copy_bytes_per_s)
    durations[rows] = times[nodes.step[rows]]
    return durations
