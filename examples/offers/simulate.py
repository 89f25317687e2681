"""Time an algorithm as if the whole network carried one message at a time."""

from __future__ import annotations

import numpy as np

from hub_core.model import message_bytes
from hub_core.plugin_api import NoOptions, SimulationRequest, SimulationResult


def simulate(request: SimulationRequest, options: NoOptions) -> SimulationResult:
    """Return one time for all ranks: no run takes longer, whatever the order of its messages."""
    algorithm, topology = request.algorithm, request.topology
    steps, is_send = algorithm.steps, algorithm.steps.sends
    units = algorithm.collective.unit_count
    sizes = message_bytes(request.collective_bytes, units, steps.count[is_send])
    ends = steps.rank[is_send].astype(np.int64), steps.peer[is_send].astype(np.int64)
    links_of_messages = np.diff(topology.routes(*ends).indptr)
    bytes_per_ns = float(topology.bandwidth_bytes_per_s.min()) / 1e9
    times_ns = links_of_messages * (sizes / bytes_per_ns + topology.latency_ns.max())
    time_ns = int(np.ceil(times_ns.sum()))
    return SimulationResult((time_ns,) * algorithm.num_ranks)
