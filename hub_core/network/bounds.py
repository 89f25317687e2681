"""Lower bounds on the time of a collective on a topology, to judge a simulated time against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_columns import BoolArray, Float64Array, Int64Array

from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind
from hub_core.network.topology import Topology


class _LeastTraffic(NamedTuple):
    """Bytes that each rank must receive and send, float64[ranks], and that all must together."""

    ingress: Float64Array
    egress: Float64Array
    total: float


def lower_bound_ns(
    collective: Collective, topology: Topology, collective_bytes: int
) -> float | None:
    """A whole number of nanoseconds that no algorithm can beat, or None for custom collectives.

    The largest of: bytes that a rank must receive (send) through its incoming (outgoing) links;
    bytes that all ranks together must receive (send) through theirs (all-reduce: 2 (n - 1) S,
    Patarasuk and Yuan, JPDC 2009); and the least latency between two ranks of which one must hear
    of the other. A link to a rank carries nothing before the least latency from a rank through it
    has passed, a link from a rank nothing that could still arrive in less. Ranks are NPUs 0..n-1;
    other NPUs forward, and switches multicast and reduce where the topology says so: then what all
    ranks together send (receive) is no more than each must alone.

    It holds for links that are shared (not for the model congestion-unaware) and for exact times: a
    simulator that truncates every message's time to whole nanoseconds, as ASTRA-sim does, gains up
    to 1 ns a message and hop, which shows where messages take few nanoseconds each. Raises
    `InputError` for too few NPUs.
    """
    n = collective.num_ranks
    if n > topology.num_npus:
        raise InputError(
            f"{n} ranks, but topology {topology.name} has {topology.num_npus} NPUs",
            cure="choose a larger topology",
            code="topology-too-small",
        )
    traffic = _traffic(collective, float(collective_bytes))
    if traffic is None or n < 2:
        return None if traffic is None else 0.0
    received = float(traffic.ingress.sum()) if topology.reduction else traffic.total
    sent = float(traffic.egress.sum()) if topology.multicast else traffic.total
    bounds = [
        _latency_bound(collective, topology),
        _transfer_bound(topology, traffic.ingress, received, is_sending=False),
        _transfer_bound(topology, traffic.egress, sent, is_sending=True),
    ]
    return float(np.floor(max(bounds)))


def _traffic(collective: Collective, size: float) -> _LeastTraffic | None:
    """The least traffic of all kinds but custom."""
    n = collective.num_ranks
    share = size / n
    rest = size - share
    at_all = np.ones(n)
    at_root = np.zeros(n)
    at_root[collective.root or 0] = 1.0
    elsewhere = at_all - at_root
    # Whatever the algorithm, each unit crosses to n - 1 other ranks, once; in an all-reduce twice.
    crossing = (n - 1) * size
    table = {
        CollectiveKind.ALL_REDUCE: _LeastTraffic(at_all * size, at_all * size, 2 * crossing),
        CollectiveKind.ALL_GATHER: _LeastTraffic(at_all * rest, at_all * share, crossing),
        CollectiveKind.REDUCE_SCATTER: _LeastTraffic(at_all * share, at_all * rest, crossing),
        CollectiveKind.ALL_TO_ALL: _LeastTraffic(at_all * rest, at_all * rest, crossing),
        CollectiveKind.BROADCAST: _LeastTraffic(elsewhere * size, at_root * size, crossing),
        CollectiveKind.REDUCE: _LeastTraffic(at_root * size, elsewhere * size, crossing),
        CollectiveKind.GATHER: _LeastTraffic(at_root * rest, elsewhere * share, rest),
        CollectiveKind.SCATTER: _LeastTraffic(elsewhere * share, at_root * rest, rest),
    }
    return table.get(collective.kind)


def _transfer_bound(
    topology: Topology, needs: Float64Array, total: float, *, is_sending: bool
) -> float:
    """Least time in which each rank alone, and all together, can receive (send) what they need."""
    arcs = topology.arcs(backwards=is_sending)
    near, far = arcs.head, arcs.tail
    is_rank = np.arange(topology.num_nodes) < len(needs)
    # Receiving: the way from the nearest rank to the far end comes before the link; sending: the
    # way from the far end to the nearest rank comes behind it.
    delay = topology.latency_ns + arcs.lengths_from(is_rank, topology.latency_ns)[far]
    times = [_fill_time(topology, delay, near < len(needs), total)]
    for rank, need in _distinct_needs(topology, delay, near, needs):
        times.append(_fill_time(topology, delay, near == rank, need))
    return max(times)


def _distinct_needs(
    topology: Topology, delay: Float64Array, ends: Int64Array, needs: Float64Array
) -> list[tuple[int, float]]:
    """(rank, need) of one rank of those that agree in need, sum of rates and sum of delays."""
    # On regular networks all ranks agree: one fill time instead of thousands.
    nodes, ranks = topology.num_nodes, len(needs)
    rates = np.bincount(ends, topology.bandwidth_bytes_per_s, nodes)[:ranks]
    delays = np.bincount(ends, delay, nodes)[:ranks]
    _, first = np.unique(np.stack([needs, rates, delays]), axis=1, return_index=True)
    return [(int(rank), float(needs[rank])) for rank in first if needs[rank] > 0]


def _fill_time(topology: Topology, delay: Float64Array, mask: BoolArray, need: float) -> float:
    """Least time in which the links of `mask` carry `need` bytes, each from its delay on."""
    if need <= 0:
        return 0.0
    # No rank stands before a link with an infinite delay: it carries nothing of use.
    usable = mask & np.isfinite(delay)
    order = np.argsort(delay[usable], kind="stable")
    starts = delay[usable][order]
    rates = (topology.bandwidth_bytes_per_s[usable] / 1e9)[order]
    # Something is needed, and nothing can bring it.
    if not len(rates):
        return float("inf")
    # With the k first-starting links, T = (need + sum of rate * start) / sum of rate: the least.
    times = (need + np.cumsum(rates * starts)) / np.cumsum(rates)
    return float(times.min())


def _latency_bound(collective: Collective, topology: Topology) -> float:
    """The largest least latency from (to) the root; without one, from two ranks far apart."""
    arcs = topology.arcs(backwards=collective.kind.traits.to_root)
    nodes = np.arange(topology.num_nodes)
    ranks = collective.num_ranks
    # Where there is no root every rank is as good to start from.
    start = collective.root or 0
    latencies = arcs.lengths_from(nodes == start, topology.latency_ns)[:ranks]
    if collective.root is None:
        # Everyone must hear of everyone: the rank farthest away is a better start.
        farther = arcs.lengths_from(nodes == np.argmax(latencies), topology.latency_ns)[:ranks]
        latencies = np.maximum(latencies, farther)
    return float(latencies.max())
