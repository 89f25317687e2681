"""Cache of packings, so that the next size on the same network does not pack again.

Packings do not depend on the size of the collective; only the choice among them does. Comparisons
and tables of sizes request one network many times, and proofs of fewest trees take most of the
time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from hub_core.network import Topology

# Enough for the planes of a network and a few collectives; trees of large networks take megabytes.
_MAX_CACHED = 8
# The packings and the number of search steps that they took.
_cache: OrderedDict[tuple[object, ...], tuple[list[PlacedPacking], int]] = OrderedDict()


def get_cached_packings(
    task: PackingTask, pack: Callable[[PackingTask], list[PlacedPacking]]
) -> list[PlacedPacking]:
    """Return `pack(task)`, from the cache if this process has packed the same task before.

    A cached result charges its search steps to the budget, so that a limit of work does not depend
    on the cache's content. Interrupted results are returned but not cached.
    """
    key = _build_key(task)
    if key in _cache:
        try:
            task.budget.take(_cache[key][1])
        except KeyboardInterrupt:
            task.budget.is_interrupted = True
    else:
        steps = task.budget.steps
        packings = pack(task)
        # A search that was cut short may give a worse packing than requested.
        if task.budget.is_interrupted:
            return packings
        _cache[key] = packings, steps - task.budget.steps
    _cache.move_to_end(key)
    while len(_cache) > _MAX_CACHED:
        _cache.popitem(last=False)
    return list(_cache[key][0])


def _build_key(task: PackingTask) -> tuple[object, ...]:
    """Build a key of everything that a packing depends on."""
    collective = task.collective
    search = (task.seed, task.seeds, task.depth, task.budget.steps)
    return collective.kind, collective.root, task.npus, *search, *_topology_key(task.topology)


def _topology_key(topology: Topology) -> tuple[object, ...]:
    """Build a key of name, sizes and all link columns of a topology."""
    columns = (
        *(topology.source, topology.destination, topology.plane),
        *(topology.bandwidth_bytes_per_s, topology.latency_s),
    )
    content = (np.ascontiguousarray(column).tobytes() for column in columns)
    return topology.name, topology.num_npus, topology.num_nodes, *content
