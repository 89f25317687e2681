"""Prepare a packing for scheduling: which fraction of the data is sent along which tree."""

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
from hub_core.columns import Float64Array, Int64Array, first_positions, group_of_entry
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy, Topology


def prepare_pipelining(task: PackingTask, packing: PlacedPacking) -> Pipelining:
    """Convert a packing to a `Pipelining`, from which schedules are computed.

    It lists the streams: which fraction of the data is sent along which tree. Size, occupancy
    and unit limits are those of the task; `reduces_first` is that of the packing. The messages of
    an all-reduce have deadlines if there are no switches, where messages queue too. Messages
    follow `Topology.routes`, one route per pair of NPUs, which may differ from the packing's
    routes. Without size-dependent parts, the result is cached for up to 32 packings. Raises
    `IndexError` for a packing without targets and trees.
    """
    prepared = _prepare_without_size(packing, task.topology, task.collective, task.npus)
    return replace(
        prepared,
        collective_bytes=task.collective_bytes,
        occupancy=task.occupancy,
        reduces_first=packing.reduces_first,
        units=task.units,
        has_deadlines=task.collective.kind is CollectiveKind.ALL_REDUCE
        and task.network.is_switchless
        and not packing.reduces_first,
    )


# A packing is scheduled for many sizes, also across syntheses, since packings are cached.
@lru_cache(maxsize=32)
def _prepare_without_size(
    packing: PlacedPacking, topology: Topology, collective: Collective, npus: tuple[int, ...]
) -> Pipelining:
    """Convert a packing to a `Pipelining` with placeholders, which the caller replaces.

    The placeholders are size 0 and `Occupancy.SERIALIZATION`. The streams depend on the packing:

    - With targets (scatter, gather): streams along paths (`_generate_path_streams`).
    - Otherwise, if the first tree has an `up` tree: every stream is reduced on the `up` tree
      and then broadcast on the tree; every tree must have an `up` tree. The data are divided in
      proportion to the weights of the trees.
    - Otherwise: plain trees, without their routes.

    `npus`: NPU of each rank. Cached. Raise `IndexError` for a packing without targets and
    trees; errors of the generators and of `Pipelining` pass through.
    """
    size, occupancy = 0, Occupancy.SERIALIZATION
    if packing.targets:
        streams = list(_generate_path_streams(packing, collective, npus))
    elif packing.trees[0].up is not None:
        streams = []
        for tree, begin, part in _split_by_weight(range(len(packing.trees)), packing.weights):
            placed = packing.trees[tree]
            assert placed.up is not None
            operations = _join_reduction_and_broadcast(placed, placed.up)
            streams.append(Stream(tree, 0, begin, part, operations))
    else:
        trees = [placed.tree for placed in packing.trees]
        return Pipelining.of(topology, trees, collective, size, occupancy, npus)
    return Pipelining.of_streams(topology, tuple(streams), collective, size, occupancy)


def measure_chunk_times(
    pipelining: Pipelining, counts: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """Return how long one chunk of every stream takes in s without other data: (0 bytes, its size).

    The time is that of the slowest sequence of messages that wait for each other, with latencies.
    `counts`: number of chunks of every stream. Every stream must have messages.
    """
    operations, routes, topology = pipelining.operations, pipelining.routes, pipelining.topology
    first = first_positions(pipelining.widths)
    parts = np.asarray([float(stream.part) for stream in pipelining.streams])
    chunk_bytes = pipelining.collective_bytes / pipelining.num_shares * parts / counts
    message_of_link = group_of_entry(routes.indptr)
    bandwidths = topology.bandwidth_bytes_per_s[routes.links]
    sending_s = chunk_bytes[pipelining.stream_of_operation[message_of_link]] / bandwidths
    times = []
    for links_s in (topology.latency_s[routes.links], topology.latency_s[routes.links] + sending_s):
        messages_ps = np.zeros(len(operations), np.int64)
        np.add.at(messages_ps, message_of_link, np.rint(links_s * 1e12).astype(np.int64))
        remaining_ps = operations.measure_remaining(messages_ps)
        times.append(np.maximum.reduceat(remaining_ps, first) / 1e12)
    return times[0], times[1]


def _generate_path_streams(
    packing: PlacedPacking, collective: Collective, npus: tuple[int, ...]
) -> Iterator[Stream]:
    """Yield the streams of a scatter or gather, by ascending rank and then by tree number.

    `npus`: NPU of each rank. `packing.targets` has the target NPU of every tree. A rank has
    one stream per tree whose target is its NPU. Its share (numbered as the rank) is divided in
    this order and in proportion to the weights of these trees: weights 3 and 1 give begins 0,
    3/4 and parts 3/4, 1/4.

    The operations of a stream are the path from the root to the NPU; in a gather from the NPU
    to the root. A rank whose NPU is no target uses tree 0 for its full share. This is the case
    of the root, whose stream has no operations. Raises `InputError` (`tree-does-not-span`) if
    the tree does not reach the NPU, and `AssertionError` for a collective without a root.
    """
    is_inward = collective.kind is CollectiveKind.GATHER
    assert collective.root is not None
    root = npus[collective.root]
    for rank, npu in enumerate(npus):
        # Any tree serves for the root's share: its stream has no operations.
        chosen = [tree for tree, target in enumerate(packing.targets) if target == npu] or [0]
        for tree, begin, part in _split_by_weight(chosen, packing.weights):
            # The operations that bring a chunk to this NPU only.
            target = np.asarray([npu])
            (operations,) = paths(pruned(packing.trees[tree].tree, target), target)
            # A gather's paths were searched from the root in the reversed network.
            if is_inward and npu != root:
                operations = turned_round(operations)
            yield Stream(tree, rank, begin, part, operations)


def _split_by_weight(
    trees: Sequence[int],
    weights: Sequence[int],
) -> Iterator[tuple[int, Fraction, Fraction]]:
    """Divide a share among trees: yield (tree, begin, length) in the order of `trees`.

    `trees`: numbers of trees; `weights[tree]`: weight of a tree. Begin and length are exact
    fractions of the share. The lengths are in proportion to the weights and add up to 1;
    each tree begins at the end of the part of the preceding tree.
    """
    total = sum(weights[tree] for tree in trees)
    begin = Fraction(0)
    for tree in trees:
        length = Fraction(weights[tree], total)
        yield tree, begin, length
        begin += length


def _join_reduction_and_broadcast(placed: PlacedTree, upward: PlacedTree) -> Operations:
    """Return the messages of a reduction up `upward`, then of a broadcast down `placed`.

    Both trees must have the same root, which is not checked. All nodes that a tree reaches take
    part. The rows of the reduction come first. The row numbers in the dependencies of the broadcast
    are adapted. In addition, every message that leaves the root waits for all messages of the
    reduction that arrive there.

    `remaining`, which decides the priority of a row, is increased for every row of the reduction:
    by the largest `remaining` of the broadcast (0 if the broadcast is empty). The trees are not
    changed.
    """
    reduce_operations, broadcast_operations = (
        reduction(_prune_nothing(upward)),
        broadcast(_prune_nothing(placed)),
    )
    # The remaining operations decide priorities, so the broadcast counts for the reduction too.
    reduce_operations = replace(
        reduce_operations,
        remaining=reduce_operations.remaining + int(broadcast_operations.remaining.max(initial=0)),
    )
    arriving = np.flatnonzero(reduce_operations.destination == placed.tree.root)
    leaving = len(reduce_operations) + np.flatnonzero(
        broadcast_operations.source == placed.tree.root
    )
    return Operations.joined([reduce_operations, broadcast_operations]).waiting(arriving, leaving)


def _prune_nothing(placed: PlacedTree) -> PrunedTree:
    """Return the tree with all of its NPUs as members, including those that only forward.

    Members are the nodes that the tree reaches (depth 0 or more).
    """
    members = np.flatnonzero(placed.tree.depths >= 0)
    return pruned(placed.tree, members)
