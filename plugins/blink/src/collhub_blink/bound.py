"""The lower bound that the optimal rate of spanning trees proves, for `compare` and `tune`."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array
from collhub_packing import CapacityGraph, all_gather_rate, broadcast_rate
from collhub_packing.graph import transposed
from collhub_packing.rates import strength

from hub_core.model import CollectiveKind, InputError
from hub_core.network import cut_bounds_ps
from hub_core.plugin_api import BoundRequest, BoundResult, NoOptions

_TO_ROOT = (CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
# Operations for each node and link: a flow a node and round, 0.1 s at 64 NPUs and 500 links.
_WORK_PER_NODE_AND_LINK = 5_000


def prove(request: BoundRequest, options: NoOptions) -> BoundResult:
    """The bound by the least cut, for all-reduces by the worst partition, of the network.

    No set of nodes gives a better bound in the limit of large sizes (`collhub_packing.rates`).
    Empty where not all NPUs take part, where switches multicast or reduce, for bandwidths without a
    common unit, and for all-reduces over links that differ by direction.
    """
    topology, collective = request.topology, request.collective
    work = topology.num_nodes * topology.num_links * _WORK_PER_NODE_AND_LINK
    has_all = collective.num_ranks == topology.num_npus
    is_plain = not (topology.multicast or topology.reduction)
    if not has_all or not is_plain or work > request.max_work:
        return BoundResult()
    try:
        label = _blocks(request)
    except InputError:
        return BoundResult()
    times = cut_bounds_ps(collective, topology, request.sizes, request.npus, label)
    return BoundResult(tuple(int(time) for time in times))


def _blocks(request: BoundRequest) -> Int64Array:
    """Blocks of the nodes, int64[nodes], -1 for switches between them. Raises `InputError`."""
    topology, kind = request.topology, request.collective.kind
    graph = CapacityGraph.of(topology)
    label = np.full(topology.num_nodes, -1, np.int64)
    if kind is CollectiveKind.ALL_REDUCE:
        best = strength(graph)
        sides = [set(side) for side in best.sides]
        for number, (block, side) in enumerate(zip(best.blocks, sides, strict=True)):
            label[list(block)] = number
            # A switch of several sides stays between them.
            others = set().union(*(other for other in sides if other is not side))
            switches = [node for node in side - others if node >= topology.num_npus]
            label[switches] = number
        return label
    if kind in _TO_ROOT:
        graph = transposed(graph)
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
        root = request.collective.root or 0
        cut = broadcast_rate(graph, root if request.npus is None else request.npus[root]).cut
    else:
        cut = all_gather_rate(graph).cut
    label[:] = 1
    label[list(cut)] = 0
    return label
