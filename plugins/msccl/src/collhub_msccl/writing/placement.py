"""Place chains of steps on thread blocks and channels by list scheduling.

A chain is a message with all steps that forward it: they share a channel, because a thread block
has one. Chains are placed in the order in which links let them begin, those with the longest chain
of successors first, so that the lower of two blocks sends first; each on the channel where it
finishes first (Graham 1966, list scheduling), or, to save blocks, in time. A block receives from
one rank and sends to one; if a channel has different blocks for the two sides of a step, the step
is separated. Cost: chains times their length times the channels tried.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import add

import numpy as np

from collhub_msccl.runtimes.known_runtimes import MAX_BLOCKS_PER_CHANNEL
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.work_graph import NONE, WorkGraph
from hub_core.columns import Int64Array

_RECV, _SEND = 0, 1
# Maximum number of steps tried in total: about a second.
_MAX_TRIED_NODES = 1 << 18


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
class Placement:
    """Thread block (numbered across ranks) and channel of every row, int64."""

    block: Int64Array
    channel: Int64Array


class _Ledger:
    """Tables of numbers whose latest changes can be undone, for trials."""

    def __init__(self) -> None:
        self._changes: list[tuple[dict[Hashable, int], Hashable, int | None]] = []

    def set(self, table: dict[Hashable, int], key: Hashable, value: int) -> None:
        """Set an entry of a table so that `undo` can restore it.

        The previous value, or its absence, is recorded.
        """
        self._changes.append((table, key, table.get(key)))
        table[key] = value

    def keep(self) -> None:
        """Make all changes so far final."""
        self._changes.clear()

    def undo(self) -> None:
        """Restore all entries changed since the last call of `keep`, and forget the changes.

        The last change is restored first. Entries that did not exist before are deleted.
        """
        while self._changes:
            table, key, value = self._changes.pop()
            if value is None:
                del table[key]
            else:
                table[key] = value


@dataclass(slots=True)
class _Trial:
    """A chain on a channel: its finish time and costs.

    `is_sparing`: `finish` is the time at which all its successors would finish, but at least the
    deadline. `waits`: total delay of its nodes; `parted`: separated steps; `is_over`: a limit is
    exceeded; `sides`: for every node the blocks of its receive and of its send; `finish_times`:
    finish time of every node.
    """

    channel: int
    is_sparing: bool
    finish: int
    waits: int = 0
    parted: int = 0
    new_blocks: int = 0
    is_over: bool = False
    sides: list[tuple[int, int]] = field(default_factory=list)
    finish_times: list[int] = field(default_factory=list)

    @property
    def cost(self) -> tuple[int, int, int, int, int]:
        """Return the key by which trials to place a chain of steps are compared; lower is better.

        Its entries are: finish time, steps separated into two, delays by busy blocks, new thread
        blocks, channel. If `is_sparing`, new blocks come before delays.
        """
        wishes = self.waits, self.new_blocks
        first, second = reversed(wishes) if self.is_sparing else wishes
        return self.finish, self.parted, first, second, self.channel


def place_chains(
    draft: StepDraft,
    graph: WorkGraph,
    begin: list[int],
    limits: PlacementLimits,
) -> Placement | None:
    """Choose the thread block and the channel of every row; None if the limits do not permit it.

    A node is a step of the file. A chain is a message with all messages that forward it, and gets
    one channel; a local step is a chain of its own. Chains that begin earlier are placed first, and
    of those that begin at the same time the one with the longest remaining work. `begin`: for each
    node its begin if it had a separate block but shared links. Local rows have channel 0. Blocks of
    all ranks are numbered from 0 in the order of creation.
    """
    placer = _Placer(graph, begin, limits)
    # Chains are placed in the order in which they begin; on a tie the longest remaining work first.
    chains = []
    for first in range(len(graph)):
        if graph.source[first] >= 0:
            continue
        chain = [first]
        while graph.target[chain[-1]] >= 0:
            chain.append(graph.target[chain[-1]])
        chains.append(chain)
    chains.sort(key=lambda chain: (begin[chain[0]], -graph.tail[chain[0]]))
    if not all(placer.add(chain) for chain in chains):
        return None
    receiving, sending = np.asarray(placer.sides, np.int64).reshape(-1, 2).T
    node = graph.node_of_row
    block = np.where(draft.sends, sending[node], receiving[node])
    channel = np.asarray(placer.channel, np.int64)
    return Placement(block, np.where(draft.partner >= 0, channel[node], 0))


class _Placer:
    """Blocks used so far, and the placement of every node."""

    def __init__(self, graph: WorkGraph, begin: list[int], limits: PlacementLimits) -> None:
        self._graph = graph
        self._limits = limits
        # In large calls links delay steps: blocks that are saved in the meantime cost no time.
        self._start = graph.start
        self._deadline = max(map(add, graph.start, graph.tail), default=0)
        self._ledger = _Ledger()
        # By block: when it becomes free, and its channel; by (block, side): its peer.
        self._free: dict[Hashable, int] = {}
        self._channel_of: dict[Hashable, int] = {}
        self._peer: dict[Hashable, int] = {}
        # By (rank, peer, channel, side): block that owns this side of a connection; by (rank,
        # channel, side): number of owners; by rank: number of blocks.
        self._owner: dict[Hashable, int] = {}
        self._crowd: dict[Hashable, int] = {}
        self._count: dict[Hashable, int] = {}
        self._of_rank: dict[int, list[int]] = {}
        # By channel in use: total time of its steps.
        self._load: dict[int, int] = {}
        self.sides = [(NONE, NONE)] * len(graph)
        self.channel = [0] * len(graph)
        self._end = [start + time for start, time in zip(self._start, graph.duration, strict=True)]

    def add(self, chain: list[int]) -> bool:
        """Place a chain on the best channel; return False if no block or channel is left for it.

        A chain is a list of nodes (steps of the file) that receive and send on one channel; a
        single node without a send is local, needs no channel, and always finds a block. The
        best channel has the lowest `_Trial.cost`, the first of equal ones. The search ends early at
        a channel without separated steps and without delays; if `is_sparing`, at one without
        separated steps and new blocks that finishes at the deadline. On success the blocks, loads,
        channels and times of the placer are updated; otherwise the placer is unchanged.
        """
        # Times at which all placed predecessors of a node on its rank are finished.
        ready = [
            max([self._start[node], *(self._end[parent] for parent in self._graph.parents[node])])
            for node in chain
        ]
        if self._graph.target[chain[0]] == NONE:
            return self._add_local(chain[0], ready[0])
        best: _Trial | None = None
        for channel in self._list_channels(chain[0]):
            trial = self._try_chain(chain, ready, channel, best)
            self._ledger.undo()
            if trial is not None and (best is None or trial.cost < best.cost):
                best = trial
            if best is None:
                continue
            # No other channel can be better.
            if self._limits.is_sparing:
                is_perfect = best.parted == best.new_blocks == 0 and best.finish == self._deadline
            else:
                is_perfect = best.parted == best.waits == 0
            if is_perfect:
                break
        if best is None:
            return False
        trial = self._try_chain(chain, ready, best.channel, None) or best
        self._ledger.keep()
        work = sum(self._graph.duration[node] for node in chain)
        self._load[trial.channel] = self._load.get(trial.channel, 0) + work
        for node, sides, end in zip(chain, trial.sides, trial.finish_times, strict=True):
            present = self._of_rank.setdefault(self._graph.rank[node], [])
            present += sorted(set(sides).difference(present))
            self.sides[node] = sides
            self.channel[node] = trial.channel
            self._end[node] = end
        return True

    def _list_channels(self, first: int) -> list[int]:
        """List the channels to try for a chain that begins with node `first`.

        If channels are not free to choose, it is the channel of the draft. Otherwise these are the
        channels in use and the next unused one below the limit, which represents all unused ones,
        ascending. If they are more than `_MAX_TRIED_NODES` / nodes (rounded down, at least 2), only
        this number of channels with the least work so far is kept, sorted by work, then by channel.
        """
        if not self._limits.is_free:
            return [self._graph.channel[first]]
        known = range(min(len(self._load) + 1, self._limits.channels))
        max_channels = max(_MAX_TRIED_NODES // len(self._graph), 2)
        if len(known) <= max_channels:
            return list(known)
        return sorted(known, key=lambda channel: (self._load.get(channel, 0), channel))[
            :max_channels
        ]

    def _add_local(self, node: int, ready: int) -> bool:
        """Place a node without messages on a block of its rank; always returns True.

        It gets the block on which it can begin first; on a tie a block of one of its predecessors,
        then the first one. It gets a new block if the rank has none, or if it would have to wait
        and the limit permits another block. `ready`: time at which its predecessors are finished.
        The changes are kept.
        """
        rank = self._graph.rank[node]
        present = self._of_rank.setdefault(rank, [])
        # After its predecessor in the same block it needs no wait.
        parents = {self.sides[parent][1] for parent in self._graph.parents[node]}
        best = min(
            present,
            key=lambda block: (max(self._free[block], ready), block not in parents),
            default=None,
        )
        if best is None or (self._free[best] > ready and len(present) < self._limits.blocks):
            best = self._add_block(rank)
            present.append(best)
        end = max(self._free[best], ready) + self._graph.duration[node]
        self._free[best] = self._end[node] = end
        self.sides[node] = best, best
        self._ledger.keep()
        return True

    def _try_chain(
        self,
        chain: list[int],
        ready: list[int],
        channel: int,
        best: _Trial | None,
    ) -> _Trial | None:
        """Try to place a chain on a channel; return the trial with its cost, or None.

        `ready`: earliest begin of each node of the chain. None if a limit is exceeded, or if the
        chain would finish later than in the trial `best`. In all cases the changes of the tables
        remain recorded in the ledger; the caller undoes or keeps them.
        """
        is_sparing = self._limits.is_sparing
        trial = _Trial(channel, is_sparing, self._deadline if is_sparing else 0)
        begin = 0
        for node, ready_time in zip(chain, ready, strict=True):
            begin = self._put_node(trial, node, max(begin, ready_time)) + self._graph.transit[node]
            if trial.is_over or (best is not None and trial.finish > best.finish):
                return None
        return trial

    def _put_node(self, trial: _Trial, node: int, begin: int) -> int:
        """Place a node (step) of a chain on one or two thread blocks; return when it sends.

        `begin`: earliest begin of the node. One block is used if `_is_one_block` permits it.
        Otherwise one block receives and stores the data, and another one then sends it; each takes
        the full duration of the node, and `trial.parted` increases by 1. Delays by busy blocks are
        added to `trial.waits`; `trial.finish` (with `is_sparing`, the end of all work that depends
        on the node), `finish_times` and `sides` are extended. Changes of blocks are recorded in the
        ledger, so they can be undone. The result is the begin of the step that sends, or of the
        only step.
        """
        # Blocks that own the sides of the node's connections, NONE if there is none yet.
        graph, rank = self._graph, self._graph.rank[node]
        incoming = self._owner.get((rank, graph.recv[node], trial.channel, _RECV), NONE)
        outgoing = self._owner.get((rank, graph.send[node], trial.channel, _SEND), NONE)
        duration = self._graph.duration[node]
        if self._is_one_block(node, incoming, outgoing):
            block = self._claim_block(trial, node, max(incoming, outgoing), (_RECV, _SEND))
            start = max(begin, self._free[block])
            trial.waits += start - begin
            self._ledger.set(self._free, block, start + duration)
            trial.sides.append((block, block))
        else:
            # Separated: the received data is stored, then another block sends it.
            receiver = self._claim_block(trial, node, incoming, (_RECV,))
            stored = max(begin, self._free[receiver]) + duration
            self._ledger.set(self._free, receiver, stored)
            sender = self._claim_block(trial, node, outgoing, (_SEND,))
            start = max(stored, self._free[sender])
            self._ledger.set(self._free, sender, start + duration)
            trial.waits += start - begin - duration
            trial.parted += 1
            trial.sides.append((receiver, sender))
        is_sparing = self._limits.is_sparing
        remaining_time = self._graph.tail[node] if is_sparing else duration
        trial.finish = max(trial.finish, start + remaining_time)
        trial.finish_times.append(start + duration)
        return start

    def _is_one_block(self, node: int, incoming: int, outgoing: int) -> bool:
        """Return whether one thread block can execute both sides of a node.

        `incoming`, `outgoing`: blocks that already own the connections of the two sides, or NONE.
        True for a node that only receives or only sends. If both connections have an owner, it must
        be the same block. If one has an owner, that block must have no peer in the other direction
        yet.
        """
        if self._graph.recv[node] == NONE or self._graph.send[node] == NONE:
            return True
        if incoming != NONE and outgoing != NONE:
            return incoming == outgoing
        # The owner of one side can take the second side, if it has none yet.
        if incoming != NONE:
            return (incoming, _SEND) not in self._peer
        return outgoing == NONE or (outgoing, _RECV) not in self._peer

    def _claim_block(self, trial: _Trial, node: int, block: int, sides: tuple[int, ...]) -> int:
        """Return a thread block that sends or receives on the connections of a node.

        `sides`: the directions, send and receive, that the block takes over; those in which the
        node has no peer or the block already has one are skipped. `block`: the block to use, NONE
        to choose one. If the limits are tight, that is the block that becomes free first among
        those of the rank that use this channel or none and have no peer in these directions;
        otherwise, or without such a block, a new one, counted in `trial.new_blocks`.
        `trial.is_over` is set if the rank then has too many blocks, or more than 32 in one
        direction of the channel. Changes of tables are recorded in the ledger.
        """
        rank = self._graph.rank[node]
        peers = {_RECV: self._graph.recv[node], _SEND: self._graph.send[node]}
        used = [side for side in sides if peers[side] != NONE]
        if block == NONE and self._limits.is_tight:
            # The block without peers on these sides that becomes free first.
            fitting = [
                block
                for block in self._of_rank.get(rank, ())
                if self._channel_of.get(block, trial.channel) == trial.channel
                and not any((block, side) in self._peer for side in used)
            ]
            block = min(fitting, key=self._free.__getitem__, default=NONE)
        if block == NONE:
            block = self._add_block(rank)
            trial.new_blocks += 1
            trial.is_over |= self._count[rank] > self._limits.blocks
        for side in used:
            if (block, side) in self._peer:
                continue
            self._ledger.set(self._peer, (block, side), peers[side])
            self._ledger.set(self._owner, (rank, peers[side], trial.channel, side), block)
            self._ledger.set(self._channel_of, block, trial.channel)
            crowd = rank, trial.channel, side
            number = self._crowd.get(crowd, 0) + 1
            self._ledger.set(self._crowd, crowd, number)
            trial.is_over |= number > MAX_BLOCKS_PER_CHANNEL
        return block

    def _add_block(self, rank: int) -> int:
        """Add a new block of a rank, free from time 0, and return its number.

        Blocks of all ranks are numbered in the order of creation. Limits are not checked. The
        changes are made through the ledger, so they can be undone.
        """
        number = len(self._free)
        self._ledger.set(self._free, number, 0)
        self._ledger.set(self._count, rank, self._count.get(rank, 0) + 1)
        return number
