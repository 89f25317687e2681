"""Packings that were made are kept for the next size on the same network.

No packing depends on the size of the collective: which one is best does. A comparison or a table
of sizes asks for one network many times, and the proofs of fewest trees take most of the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from hub_core.network import Topology

# Planes of a network and a few collectives; trees of large networks take megabytes.
_MOST_KEPT = 8
_kept: OrderedDict[tuple[object, ...], list[PlacedPacking]] = OrderedDict()


def kept_packings(
    task: PackingTask, pack: Callable[[PackingTask], list[PlacedPacking]]
) -> list[PlacedPacking]:
    """`pack(task)`, from memory where the same packings were made in this process before."""
    key = _key(task)
    found = _kept.get(key)
    if found is None:
        found = pack(task)
        # What Ctrl-C has cut short is not what the request asks for.
        if task.budget.is_interrupted:
            return found
        _kept[key] = found
    _kept.move_to_end(key)
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return list(found)


def _key(task: PackingTask) -> tuple[object, ...]:
    """All that a packing depends on."""
    collective = task.collective
    search = (task.seed, task.seeds, task.depth, task.budget.steps)
    return collective.kind, collective.root, task.npus, *search, *_content(task.topology)


def _content(topology: Topology) -> tuple[object, ...]:
    columns = (
        *(topology.source, topology.destination, topology.plane),
        *(topology.bandwidth_bytes_per_s, topology.latency_s),
    )
    content = (np.ascontiguousarray(column).tobytes() for column in columns)
    return topology.name, topology.num_npus, topology.num_nodes, *content
