"""Place chains of steps on thread blocks and channels by list scheduling.

A chain is a message with all steps that forward it: they share a channel, because a thread block
has one. Chains are placed in the order in which links let them begin, those with the longest chain
of successors first, so that the lower of two blocks sends first; each on the channel where it
finishes first (Graham 1966, list scheduling), or, to save blocks, in time. A block receives from
one rank and sends to one; if a channel has different blocks for the two sides of a step, the step
is separated. Cost: chains times their length times the channels tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.runtimes.known_runtimes import MAX_BLOCKS_PER_CHANNEL
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.list_kernels import (
    NONE,
    Limits,
    Sides,
    as_array,
    create_tables,
    place_nodes,
    run,
)
from collhub_msccl.writing.work_graph import WorkGraph
from hub_core.columns import Int64Array

# Channels that are tried at most, more than any runtime has.
_MAX_CHANNELS = 1 << 10


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Limits of a placement: blocks of a rank, and number of channels.

    `is_free`: channels are chosen, and those of the draft are ignored; `is_sparing`: a chain need
    not finish first, but only in time for the makespan, with as few new blocks as possible;
    `is_tight`: receiving and sending sides may share a block even if they are unrelated.
    """

    blocks: int
    channels: int
    is_free: bool
    is_sparing: bool = False
    is_tight: bool = False


@dataclass(frozen=True, slots=True)
class BlockPlacement:
    """Thread block (numbered across ranks) and channel of every row, int64."""

    block: Int64Array
    channel: Int64Array

    def equals(self, other: BlockPlacement) -> bool:
        """Return whether all rows have equal blocks and channels."""
        is_equal = np.array_equal(self.block, other.block)
        return is_equal and np.array_equal(self.channel, other.channel)


def place_chains(
    draft: StepDraft,
    graph: WorkGraph,
    begin: Int64Array,
    limits: PlacementLimits,
) -> BlockPlacement | None:
    """Choose the thread block and the channel of every row; None if the limits do not permit it.

    A node of `graph` is a step of the file. A chain, i.e. a message with all messages that forward
    it or one local step, has one channel. `begin`: for each node the time at which it begins if
    every node has a separate block, but links are shared.

    Chains are placed by ascending `begin` of their first node, on a tie by descending remaining
    work, then by node (`place_nodes`). Blocks of all ranks are numbered from 0 in the order of
    creation. The channel of rows without a partner is 0. Of all other rows it is:

    - With `limits.is_free`: chosen, below the smallest of `limits.channels`, chains + 1, and 1024.
    - Otherwise: that of `graph`.
    """
    size, nodes = len(graph), graph.nodes
    sides, number_of_sides = _number_sides(graph)
    channels, channel = np.unique(graph.channel, return_inverse=True)
    first = np.flatnonzero(nodes.source < 0)
    # Chains are placed in the order in which they begin; on a tie the longest remaining work first.
    chains = first[np.lexsort((-graph.tail[first], begin[first]))]
    columns = Sides(*sides, channel.reshape(-1), graph.start, graph.tail)
    # In large calls links delay steps: blocks that are saved in the meantime cost no time.
    deadline = int((graph.start + graph.tail).max(initial=0))
    # A chain uses at most one channel that no earlier one used.
    largest = min(limits.channels, len(chains) + 1) if limits.is_free else len(channels)
    bounds = Limits(
        limits.blocks,
        min(largest, _MAX_CHANNELS),
        MAX_BLOCKS_PER_CHANNEL,
        limits.is_free,
        limits.is_sparing,
        limits.is_tight,
        number_of_sides,
        graph.num_ranks,
        deadline,
    )
    tables = create_tables(nodes, columns, bounds)
    is_placed, *places = run(place_nodes, size, nodes, columns, bounds, tables, chains)
    if not is_placed:
        return None
    receiving, sending, placed = (as_array(place) for place in places)
    node = graph.node_of_row
    block = np.where(draft.sends, sending[node], receiving[node])
    # Channels of the draft were numbered.
    channel_of_node = placed if limits.is_free else channels[placed]
    return BlockPlacement(block, np.where(draft.partner >= 0, channel_of_node[node], 0))


def _number_sides(graph: WorkGraph) -> tuple[tuple[Int64Array, Int64Array], int]:
    """Number the sides, i.e. the distinct triples (rank, peer, direction) of all messages.

    Numbers start at 0 and ascend by rank, then peer, then direction (receive before send).
    Returns ((receive sides, send sides), number of sides). Both arrays have one entry per node
    of `graph`: the side on which the node receives or sends, or NONE if it does not.
    """
    rank, ranks = graph.nodes.rank, graph.num_ranks
    keys = [
        (rank * ranks + peer) * 2 + direction
        for direction, peer in enumerate((graph.recv, graph.send))
    ]
    used = graph.recv != NONE, graph.send != NONE
    known, number = np.unique(
        np.concatenate([key[mask] for key, mask in zip(keys, used, strict=True)]),
        return_inverse=True,
    )
    receive, send = np.full(len(rank), NONE), np.full(len(rank), NONE)
    receive[used[0]], send[used[1]] = np.split(number, [np.count_nonzero(used[0])])
    return (receive, send), len(known)
