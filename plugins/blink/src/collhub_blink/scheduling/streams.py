"""Which part of the data goes on which tree of a packing, where trees do not serve all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from collhub_packing.pipelining import (
    Operations,
    Pipelining,
    PrunedTree,
    Stream,
    broadcast,
    paths,
    pruned,
    reduction,
    turned_round,
)

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.placing import PlacedTree
from collhub_blink.packing.task import PackingTask
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy, Topology


def pipelining_of(task: PackingTask, packing: PlacedPacking) -> Pipelining:
    """The packing, prepared for schedules.

    Messages go by `Topology.routes`, one route a pair, as everywhere in the hub; a packing's own
    may be others.
    """
    prepared = _prepared(packing, task.topology, task.collective, task.npus)
    return replace(
        prepared,
        collective_bytes=task.collective_bytes,
        occupancy=task.occupancy,
        reduces_first=packing.reduces_first,
    )


# One packing is scheduled for many sizes: packings are kept between them as well.
@lru_cache(maxsize=32)
def _prepared(
    packing: PlacedPacking, topology: Topology, collective: Collective, npus: tuple[int, ...]
) -> Pipelining:
    """The packing, prepared for schedules of a size that is chosen later."""
    size, occupancy = 0, Occupancy.SERIALIZATION
    if packing.targets or packing.trees[0].up is not None:
        streams = _directed_streams(packing)
        if packing.targets:
            streams = _path_streams(packing, collective, npus)
        return Pipelining.of_streams(topology, tuple(streams), collective, size, occupancy)
    trees = [placed.tree for placed in packing.trees]
    return Pipelining.of(topology, trees, collective, size, occupancy, npus)


def _path_streams(
    packing: PlacedPacking, collective: Collective, npus: tuple[int, ...]
) -> Iterator[Stream]:
    """Every rank's share, cut in parts by the weights of its paths; the root's own goes nowhere."""
    is_inward = collective.kind is CollectiveKind.GATHER
    assert collective.root is not None
    root = npus[collective.root]
    for rank, npu in enumerate(npus):
        # The root's share needs a stream as well, along any tree: it has no messages.
        chosen = [tree for tree, target in enumerate(packing.targets) if target == npu] or [0]
        for tree, begin, part in _parts(chosen, packing.weights):
            operations = _path_to(packing.trees[tree], npu)
            # In a network turned round, a gather's paths were found from the root as well.
            if is_inward and npu != root:
                operations = turned_round(operations)
            yield Stream(tree, rank, begin, part, operations)


def _parts(
    trees: Sequence[int],
    weights: Sequence[int],
) -> Iterator[tuple[int, Fraction, Fraction]]:
    """(tree, begin, part) of a share that is split by the weights of some trees."""
    total = sum(weights[tree] for tree in trees)
    begin = Fraction(0)
    for tree in trees:
        part = Fraction(weights[tree], total)
        yield tree, begin, part
        begin += part


def _path_to(placed: PlacedTree, npu: int) -> Operations:
    """The messages that bring a chunk to one NPU."""
    target = np.asarray([npu])
    (operations,) = paths(pruned(placed.tree, target), target)
    return operations


def _directed_streams(packing: PlacedPacking) -> Iterator[Stream]:
    """Every tree's part of the data: up one way, and once a chunk is whole, down the other."""
    every_tree = range(len(packing.trees))
    for number, begin, part in _parts(every_tree, packing.weights):
        placed = packing.trees[number]
        assert placed.up is not None
        yield Stream(number, 0, begin, part, _there_and_back(placed, placed.up))


def _there_and_back(placed: PlacedTree, upward: PlacedTree) -> Operations:
    """A reduction on one tree and a broadcast on another of the same root."""
    up, down = reduction(_whole(upward)), broadcast(_whole(placed))
    # What follows on the way down counts for the order on the way up.
    up = replace(up, remaining=up.remaining + int(down.remaining.max(initial=0)))
    arriving = np.flatnonzero(up.destination == placed.tree.root)
    leaving = len(up) + np.flatnonzero(down.source == placed.tree.root)
    return Operations.joined([up, down]).waiting(arriving, leaving)


def _whole(placed: PlacedTree) -> PrunedTree:
    """All of a tree, NPUs that only hand on included."""
    members = np.flatnonzero(placed.tree.depths >= 0)
    return pruned(placed.tree, members)
