"""The lower bound example: the bytes that ranks must receive, through all links into NPUs."""

from __future__ import annotations

from hub_core.network import lower_bounds_ps
from hub_core.plugin_api import BoundRequest, BoundResult, NoOptions


def prove(request: BoundRequest, options: NoOptions) -> BoundResult:
    """The bytes of an all-gather by the bandwidth of all links into NPUs, latencies left out.

    The core's own bound is one already; a plugin takes it where its own proves less.
    """
    ranks, topology = request.collective.num_ranks, request.topology
    enters = topology.destination < topology.num_npus
    bytes_per_s = float(topology.bandwidth_bytes_per_s[enters].sum())
    known = lower_bounds_ps(request.collective, topology, request.sizes, request.npus)
    if not bytes_per_s or known is None:
        return BoundResult()
    times = (int(1e12 * (ranks - 1) * size / bytes_per_s) for size in request.sizes)
    return BoundResult(tuple(min(time, int(own)) for time, own in zip(times, known, strict=True)))
