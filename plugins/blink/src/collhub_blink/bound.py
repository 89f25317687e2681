"""Lower bounds of the time from the optimal rate of spanning trees, for `compare` and `tune`."""

from __future__ import annotations

import numpy as np
from collhub_packing import CapacityGraph, all_gather_rate, broadcast_rate
from collhub_packing.graph import transposed
from collhub_packing.rates import strength

from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind, InputError
from hub_core.network import cut_bounds_ps
from hub_core.plugin_api import BoundRequest, BoundResult, NoOptions

_KINDS_TO_ROOT = (CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
# Operations per node and link: one flow per node and round, 0.1 s at 64 NPUs and 500 links.
_WORK_PER_NODE_AND_LINK = 5_000


def prove(request: BoundRequest, options: NoOptions) -> BoundResult:
    """Prove a lower bound of the time for every size, by a partition of the nodes or a minimum cut.

    `times_ps` has one time in ps per size of the request, in the same order, rounded down. It is
    the time in which the links between the blocks of `_find_blocks` can carry the data that must
    cross them (`cut_bounds_ps`): the blocks of a partition for an all-reduce, the two sides of a
    cut for every other collective. For large sizes no other blocks give a better bound
    (`collhub_packing.rates`). The result is empty, without an error, in these cases:

    - not all NPUs are ranks
    - switches multicast or reduce
    - nodes * links * `_WORK_PER_NODE_AND_LINK` exceeds `max_work` of the request
    - bandwidths have no common unit, or the links of an all-reduce differ by direction
    - there is a single NPU, or the data cannot reach every NPU over the links
    """
    topology, collective = request.topology, request.collective
    work = topology.num_nodes * topology.num_links * _WORK_PER_NODE_AND_LINK
    has_all = collective.num_ranks == topology.num_npus
    is_plain = not (topology.multicast or topology.reduction)
    if not has_all or not is_plain or work > request.max_work:
        return BoundResult()
    try:
        label = _find_blocks(request)
    except InputError:
        return BoundResult()
    times = cut_bounds_ps(collective, topology, request.sizes, request.npus, label)
    return BoundResult(tuple(int(time) for time in times))


def _find_blocks(request: BoundRequest) -> Int64Array:
    """Return the block of each node, int64[nodes]; the links between blocks limit the rate.

    - All-reduce: an NPU has the index of its block in the result of `strength`. A switch has the
      index of the only set in `sides` that contains it, or -1 if several or none do.
    - Broadcast and reduce: 0 for the nodes in the cut of `broadcast_rate` from the root, 1 for all
      others. The root is the NPU of rank `collective.root` (rank 0 if None).
    - All other collectives: 0 for the nodes in the cut of `all_gather_rate`, 1 for all others.

    For reduce and reduce-scatter (`_KINDS_TO_ROOT`), the links are reversed before the cut is
    computed; block 1 then sends to block 0. Raises `InputError` for bandwidths without a common
    unit, for a network that is not connected or has a single NPU, and for an all-reduce if links
    differ by direction.
    """
    topology, kind = request.topology, request.collective.kind
    graph = CapacityGraph.of(topology)
    label = np.full(topology.num_nodes, -1, np.int64)
    if kind is CollectiveKind.ALL_REDUCE:
        best = strength(graph)
        sides = [set(side) for side in best.sides]
        for number, (block, side) in enumerate(zip(best.blocks, sides, strict=True)):
            label[list(block)] = number
            # A switch that belongs to several sides stays in between.
            remaining_nodes = set().union(
                *(other_side for other_side in sides if other_side is not side)
            )
            switches = [node for node in side - remaining_nodes if node >= topology.num_npus]
            label[switches] = number
        return label
    if kind in _KINDS_TO_ROOT:
        graph = transposed(graph)
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
        root = request.collective.root or 0
        cut = broadcast_rate(graph, root if request.npus is None else request.npus[root]).cut
    else:
        cut = all_gather_rate(graph).cut
    label[:] = 1
    label[list(cut)] = 0
    return label
