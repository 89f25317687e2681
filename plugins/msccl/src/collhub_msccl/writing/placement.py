"""Place chains of steps on thread blocks and channels by list scheduling.

A chain is a message with all the steps that pass it on: they have one channel, as a thread block
has. Chains are placed in the order in which links let them begin, those with most behind them
first, so that of two blocks the lower one sends first; each on the channel where it is done first
(Graham 1966, list scheduling), or, to spare blocks, in time. A block receives from one rank and
sends to one; where a channel has other blocks for the two sides of a step, the step is parted.
Cost: chains times their length times the channels tried.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import add

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.runtimes.known_runtimes import MAX_BLOCKS_PER_CHANNEL
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.work_graph import NONE, WorkGraph

_RECV, _SEND = 0, 1
# Steps that are tried in all: about a second.
_MOST_TRIED_NODES = 1 << 18


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Blocks of a rank, and channels.

    `is_free`: channels are chosen, whatever the draft has; `is_sparing`: a chain need not be done
    first, but so that the whole ends in time, on as few new blocks as possible; `is_tight`: what
    receives and what sends share blocks that have nothing else in common.
    """

    blocks: int
    channels: int
    is_free: bool
    is_sparing: bool = False
    is_tight: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Thread block (of all ranks) and channel of every row: int64."""

    block: Int64Array
    channel: Int64Array


class _Ledger:
    """Tables of numbers whose latest changes can be taken back, for trials."""

    def __init__(self) -> None:
        self._changes: list[tuple[dict[Hashable, int], Hashable, int | None]] = []

    def set(self, table: dict[Hashable, int], key: Hashable, value: int) -> None:
        """Change an entry."""
        self._changes.append((table, key, table.get(key)))
        table[key] = value

    def keep(self) -> None:
        """Make all changes so far final."""
        self._changes.clear()

    def take_back(self) -> None:
        """Undo all changes since the last final ones."""
        while self._changes:
            table, key, value = self._changes.pop()
            if value is None:
                del table[key]
            else:
                table[key] = value


@dataclass(slots=True)
class _Trial:
    """A chain on a channel: when it would be done, and what that would take.

    `is_sparing`: `finish` is when all behind it would be done, but never before the deadline;
    `is_over`: a limit is exceeded. `sides`: for every node the blocks of its receive and of its
    send; `ends`: when it is done.
    """

    channel: int
    is_sparing: bool
    finish: int
    waits: int = 0
    parted: int = 0
    new_blocks: int = 0
    is_over: bool = False
    sides: list[tuple[int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def cost(self) -> tuple[int, int, int, int, int]:
        """The lower the better."""
        wishes = self.waits, self.new_blocks
        first, second = reversed(wishes) if self.is_sparing else wishes
        return self.finish, self.parted, first, second, self.channel


def place(
    draft: StepDraft,
    graph: WorkGraph,
    begin: list[int],
    limits: PlacementLimits,
) -> Placement | None:
    """Blocks and channels of all rows; None where the limits are too tight for this way.

    `begin`: when each node would begin if it had a block of its own, but shared links.
    """
    placer = _Placer(graph, begin, limits)
    if not all(placer.add(chain) for chain in _chains(graph, begin)):
        return None
    receiving, sending = np.asarray(placer.sides, np.int64).reshape(-1, 2).T
    node = graph.node_of_row
    block = np.where(draft.sends, sending[node], receiving[node])
    channel = np.asarray(placer.channel, np.int64)
    return Placement(block, np.where(draft.partner >= 0, channel[node], 0))


def _chains(graph: WorkGraph, begin: list[int]) -> list[list[int]]:
    """All chains in the order in which they are placed."""
    chains = []
    for first in range(len(graph)):
        if graph.source[first] >= 0:
            continue
        chain = [first]
        while graph.target[chain[-1]] >= 0:
            chain.append(graph.target[chain[-1]])
        chains.append(chain)
    return sorted(chains, key=lambda chain: (begin[chain[0]], -graph.tail[chain[0]]))


class _Placer:
    """Blocks so far, and where every node has gone."""

    def __init__(self, graph: WorkGraph, begin: list[int], limits: PlacementLimits) -> None:
        self._graph = graph
        self._limits = limits
        # Links make steps wait where calls are large: a block saved meanwhile costs nothing.
        self._start = graph.start
        self._deadline = max(map(add, graph.start, graph.tail), default=0)
        self._ledger = _Ledger()
        # By block: when it is free, its channel, and by (block, side) its peer.
        self._free: dict[Hashable, int] = {}
        self._channel_of: dict[Hashable, int] = {}
        self._peer: dict[Hashable, int] = {}
        # By (rank, peer, channel, side) the block that owns this end of a connection; by (rank,
        # channel, side) how many there are; by rank the number of blocks.
        self._owner: dict[Hashable, int] = {}
        self._crowd: dict[Hashable, int] = {}
        self._count: dict[Hashable, int] = {}
        self._of_rank: dict[int, list[int]] = {}
        # By channel in use: time of all steps on it.
        self._load: dict[int, int] = {}
        self.sides = [(NONE, NONE)] * len(graph)
        self.channel = [0] * len(graph)
        self._end = [start + time for start, time in zip(self._start, graph.duration, strict=True)]

    def add(self, chain: list[int]) -> bool:
        """Place a chain; False where no block or channel is left for it."""
        ready = [self._ready(node) for node in chain]
        if self._graph.target[chain[0]] == NONE:
            return self._add_local(chain[0], ready[0])
        best: _Trial | None = None
        for channel in self._choices(chain[0]):
            trial = self._tried(chain, ready, channel, best)
            self._ledger.take_back()
            if trial is not None and (best is None or trial.cost < best.cost):
                best = trial
            if best is not None and self._is_perfect(best):
                break
        if best is None:
            return False
        self._take(chain, ready, best)
        return True

    def _is_perfect(self, trial: _Trial) -> bool:
        """Whether no other channel can be better."""
        if self._limits.is_sparing:
            return trial.parted == trial.new_blocks == 0 and trial.finish == self._deadline
        return trial.parted == trial.waits == 0

    def _ready(self, node: int) -> int:
        """When all that a node waits for on its rank is done, as far as it is placed."""
        graph = self._graph
        return max([self._start[node], *(self._end[parent] for parent in graph.parents[node])])

    def _choices(self, first: int) -> list[int]:
        """Channels worth a trial: those in use, and the next, which stands for all others.

        Of many only those with least work so far, in programs where trials would take seconds.
        """
        if not self._limits.is_free:
            return [self._graph.channel[first]]
        known = range(min(len(self._load) + 1, self._limits.channels))
        most = max(_MOST_TRIED_NODES // len(self._graph), 2)
        if len(known) <= most:
            return list(known)
        return sorted(known, key=lambda channel: (self._load.get(channel, 0), channel))[:most]

    def _add_local(self, node: int, ready: int) -> bool:
        """Place a node without messages on the block that is free first, or on a new one."""
        rank = self._graph.rank[node]
        present = self._of_rank.setdefault(rank, [])
        # Behind what it waits for, it needs no wait.
        parents = {self.sides[parent][1] for parent in self._graph.parents[node]}
        best = min(
            present,
            key=lambda block: (max(self._free[block], ready), block not in parents),
            default=None,
        )
        if best is None or (self._free[best] > ready and len(present) < self._limits.blocks):
            best = self._new_block(rank)
            present.append(best)
        end = max(self._free[best], ready) + self._graph.duration[node]
        self._free[best] = self._end[node] = end
        self.sides[node] = best, best
        self._ledger.keep()
        return True

    def _tried(
        self,
        chain: list[int],
        ready: list[int],
        channel: int,
        best: _Trial | None,
    ) -> _Trial | None:
        """Put the chain on a channel; None where it has no place or is no better than the best."""
        is_sparing = self._limits.is_sparing
        trial = _Trial(channel, is_sparing, self._deadline if is_sparing else 0)
        begin = 0
        for node, at in zip(chain, ready, strict=True):
            begin = self._put(trial, node, max(begin, at)) + self._graph.transit[node]
            if trial.is_over or (best is not None and trial.finish > best.finish):
                return None
        return trial

    def _put(self, trial: _Trial, node: int, begin: int) -> int:
        """Put a node on blocks, and return when the step begins that sends."""
        incoming, outgoing = self._owners(node, trial.channel)
        duration = self._graph.duration[node]
        if self._is_one(node, incoming, outgoing):
            block = self._claimed(trial, node, max(incoming, outgoing), (_RECV, _SEND))
            start = max(begin, self._free[block])
            trial.waits += start - begin
            self._ledger.set(self._free, block, start + duration)
            trial.sides.append((block, block))
        else:
            # Parted: what is received is stored, then another block sends it.
            receiver = self._claimed(trial, node, incoming, (_RECV,))
            stored = max(begin, self._free[receiver]) + duration
            self._ledger.set(self._free, receiver, stored)
            sender = self._claimed(trial, node, outgoing, (_SEND,))
            start = max(stored, self._free[sender])
            self._ledger.set(self._free, sender, start + duration)
            trial.waits += start - begin - duration
            trial.parted += 1
            trial.sides.append((receiver, sender))
        is_sparing = self._limits.is_sparing
        behind = self._graph.tail[node] if is_sparing else duration
        trial.finish = max(trial.finish, start + behind)
        trial.ends.append(start + duration)
        return start

    def _owners(self, node: int, channel: int) -> tuple[int, int]:
        """The blocks that own the ends of a node's connections, -1 where nobody does."""
        graph, rank = self._graph, self._graph.rank[node]
        incoming = self._owner.get((rank, graph.recv[node], channel, _RECV), NONE)
        outgoing = self._owner.get((rank, graph.send[node], channel, _SEND), NONE)
        return incoming, outgoing

    def _is_one(self, node: int, incoming: int, outgoing: int) -> bool:
        """Whether one block can do both sides of a step, of the owners that these have so far."""
        if self._graph.recv[node] == NONE or self._graph.send[node] == NONE:
            return True
        if incoming != NONE and outgoing != NONE:
            return incoming == outgoing
        # The owner of one side takes the other too, if it has none.
        if incoming != NONE:
            return (incoming, _SEND) not in self._peer
        return outgoing == NONE or (outgoing, _RECV) not in self._peer

    def _claimed(self, trial: _Trial, node: int, block: int, sides: tuple[int, ...]) -> int:
        """The block, or a new one, as owner of these ends of the node's connections."""
        rank = self._graph.rank[node]
        peers = {_RECV: self._graph.recv[node], _SEND: self._graph.send[node]}
        used = [side for side in sides if peers[side] != NONE]
        if block == NONE and self._limits.is_tight:
            block = self._spare(rank, trial.channel, used)
        if block == NONE:
            block = self._new_block(rank)
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

    def _spare(self, rank: int, channel: int, sides: list[int]) -> int:
        """The block that is free first of those that can take these sides too, or -1."""
        fitting = [
            block
            for block in self._of_rank.get(rank, ())
            if self._channel_of.get(block, channel) == channel
            and not any((block, side) in self._peer for side in sides)
        ]
        return min(fitting, key=self._free.__getitem__, default=NONE)

    def _take(self, chain: list[int], ready: list[int], best: _Trial) -> None:
        """Place a chain as tried."""
        trial = self._tried(chain, ready, best.channel, None) or best
        self._ledger.keep()
        work = sum(self._graph.duration[node] for node in chain)
        self._load[trial.channel] = self._load.get(trial.channel, 0) + work
        for node, sides, end in zip(chain, trial.sides, trial.ends, strict=True):
            present = self._of_rank.setdefault(self._graph.rank[node], [])
            present += sorted(set(sides).difference(present))
            self.sides[node] = sides
            self.channel[node] = trial.channel
            self._end[node] = end

    def _new_block(self, rank: int) -> int:
        """Number of a block that nobody uses yet."""
        number = len(self._free)
        self._ledger.set(self._free, number, 0)
        self._ledger.set(self._count, rank, self._count.get(rank, 0) + 1)
        return number
