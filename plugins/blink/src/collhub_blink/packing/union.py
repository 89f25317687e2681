"""What no algorithm exceeds that may use all planes of a topology, in whatever way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collhub_packing import all_gather_rate, broadcast_rate, strength

from collhub_blink.packing.bounds import cut_bound, ingress_bound, partition_bound
from collhub_blink.packing.directed_all_reduce import directed_bound
from collhub_blink.packing.packings import RateBound
from collhub_blink.packing.paths import path_bound
from collhub_blink.packing.task import PackingTask
from hub_core.model import CollectiveKind


def union_bound(task: PackingTask) -> RateBound:
    """The least cut or partition of the network in which the links of all planes add up.

    It is at least the sum of the planes' own bounds, and more where cuts of different places
    limit the planes.
    """
    return _BOUNDS[task.collective.kind](task)


def _rooted(task: PackingTask) -> RateBound:
    """The least cut behind the root."""
    network = task.oriented_network
    return cut_bound(network, broadcast_rate(network.graph, task.root))


def _spread(task: PackingTask) -> RateBound:
    """The least cut by ranks in it."""
    network = task.oriented_network
    return ingress_bound(network, all_gather_rate(network.graph))


def _all_reduce(task: PackingTask) -> RateBound:
    """The tightest partition; with links that differ by direction, the best bound at hand."""
    network = task.network
    # The strength is known for duplex links alone.
    if not network.is_duplex:
        return directed_bound(network)
    return partition_bound(network, strength(network.graph))


_BOUNDS: Mapping[CollectiveKind, Callable[[PackingTask], RateBound]] = {
    CollectiveKind.BROADCAST: _rooted,
    CollectiveKind.REDUCE: _rooted,
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.ALL_GATHER: _spread,
    CollectiveKind.REDUCE_SCATTER: _spread,
    CollectiveKind.SCATTER: path_bound,
    CollectiveKind.GATHER: path_bound,
}
