"""The bound on the rate of any algorithm that may use all planes of a topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collhub_packing import all_gather_rate, broadcast_rate, strength

from collhub_blink.packing.multi_root import compute_directed_bound
from collhub_blink.packing.packings import (
    RateBound,
    to_cut_bound,
    to_ingress_bound,
    to_partition_bound,
)
from collhub_blink.packing.paths import compute_path_bound
from collhub_blink.packing.task import PackingTask
from hub_core.model import CollectiveKind


def compute_union_bound(task: PackingTask) -> RateBound:
    """Return the tightest cut or partition of the network in which the links of all planes add up.

    It is at least the sum of the planes' bounds, and larger if the cuts that limit the planes
    differ.
    """
    return _BOUNDS[task.collective.kind](task)


def _compute_rooted_bound(task: PackingTask) -> RateBound:
    """Return the bound by the minimum cut between the root and any rank."""
    network = task.oriented_network
    return to_cut_bound(network, broadcast_rate(network.graph, task.root))


def _compute_all_gather_bound(task: PackingTask) -> RateBound:
    """Return the bound by the cut with the minimum capacity per rank on its source side."""
    network = task.oriented_network
    return to_ingress_bound(network, all_gather_rate(network.graph))


def _compute_all_reduce_bound(task: PackingTask) -> RateBound:
    """Return the bound by the tightest partition, or by `compute_directed_bound` if not duplex."""
    network = task.network
    if not network.is_duplex:
        return compute_directed_bound(network)
    return to_partition_bound(network, strength(network.graph))


_BOUNDS: Mapping[CollectiveKind, Callable[[PackingTask], RateBound]] = {
    CollectiveKind.BROADCAST: _compute_rooted_bound,
    CollectiveKind.REDUCE: _compute_rooted_bound,
    CollectiveKind.ALL_REDUCE: _compute_all_reduce_bound,
    CollectiveKind.ALL_GATHER: _compute_all_gather_bound,
    CollectiveKind.REDUCE_SCATTER: _compute_all_gather_bound,
    CollectiveKind.SCATTER: compute_path_bound,
    CollectiveKind.GATHER: compute_path_bound,
}
