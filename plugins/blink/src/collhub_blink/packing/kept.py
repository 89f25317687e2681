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
# The packings, and the search steps that they took.
_kept: OrderedDict[tuple[object, ...], tuple[list[PlacedPacking], int]] = OrderedDict()


def kept_packings(
    task: PackingTask, pack: Callable[[PackingTask], list[PlacedPacking]]
) -> list[PlacedPacking]:
    """`pack(task)`, from memory where the same packings were made in this process before.

    Those from memory count as much work, so that a limit of work does not depend on what was made
    before.
    """
    key = _key(task)
    if key in _kept:
        try:
            task.budget.take(_kept[key][1])
        except KeyboardInterrupt:
            task.budget.is_interrupted = True
    else:
        steps = task.budget.steps
        found = pack(task)
        # What Ctrl-C or a limit has cut short is not what the request asks for.
        if task.budget.is_interrupted:
            return found
        _kept[key] = found, steps - task.budget.steps
    _kept.move_to_end(key)
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return list(_kept[key][0])


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
